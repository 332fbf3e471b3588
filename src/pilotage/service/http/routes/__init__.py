"""Defines the HTTP routes, by subject."""

__all__ = [
    "agents",
    "content",
    "events",
    "files",
    "jobs",
    "operations",
    "outputs",
    "record_feeds",
    "records",
    "sites",
    "subscriptions",
    "system",
    "transfers",
]
