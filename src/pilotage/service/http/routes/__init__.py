"""Defines the HTTP routes, by subject."""

__all__ = [
    "agents",
    "events",
    "jobs",
    "operations",
    "outputs",
    "record_feeds",
    "records",
    "sites",
    "subscriptions",
    "system",
]
