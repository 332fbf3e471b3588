"""The book in one live SQLite file, with a file for each sealed job."""
