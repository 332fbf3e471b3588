"""Stores the book in one live SQLite file, and each sealed job in a file of its own."""

__all__ = ["backup", "connections", "journal", "locations", "reader", "schema"]
