"""Where the book is kept: one live SQLite file with a file for each sealed job, or one PostgreSQL database."""
