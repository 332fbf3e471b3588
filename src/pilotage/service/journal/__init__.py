"""Writes the book, as its only writer; retains, purges and rebuilds it."""

__all__ = ["rebuild", "record_feeds", "record_uploads", "recording", "retention", "writer"]
