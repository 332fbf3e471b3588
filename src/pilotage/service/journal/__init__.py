"""Writes the book, as its only writer; retains, purges and rebuilds it."""

__all__ = [
    "content_retention",
    "rebuild",
    "record_expiry",
    "record_feeds",
    "record_uploads",
    "recording",
    "retention",
    "writer",
]
