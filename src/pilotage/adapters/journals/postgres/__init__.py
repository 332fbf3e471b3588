"""The book in a PostgreSQL database."""
