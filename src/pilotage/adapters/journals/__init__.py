"""Stores the book: in one live SQLite file plus a file per sealed job, or in a PostgreSQL database."""

__all__ = ["dump", "network_folders", "postgres", "queries", "sqlite"]
