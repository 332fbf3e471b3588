"""Defines the routes of HTTP, by subject."""

__all__ = ["events", "jobs", "operations", "outputs", "sites", "subscriptions", "system"]
