"""Defines the routes of HTTP, by subject."""

__all__ = ["agents", "events", "jobs", "operations", "outputs", "sites", "subscriptions", "system"]
