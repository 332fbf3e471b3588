"""Stores indexes of job records: in a file of SQLite, or in PostgreSQL."""

__all__ = ["postgres", "sqlite", "statements", "tables"]
