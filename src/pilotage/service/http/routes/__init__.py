"""Defines the HTTP routes, by subject."""

__all__ = ["agents", "events", "jobs", "operations", "outputs", "records", "sites", "subscriptions", "system"]
