"""Writes the book, the only one to do so; retains, purges and rebuilds it."""

__all__ = ["rebuild", "retention", "writer"]
