"""Stores the book in a PostgreSQL database."""

__all__ = ["connection", "journal"]
