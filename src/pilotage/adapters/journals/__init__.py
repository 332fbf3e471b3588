"""Stores the book: in one live SQLite file with a file for each sealed job, or in one PostgreSQL database."""

__all__ = ["dump", "network_folders", "postgres", "queries", "sqlite"]
