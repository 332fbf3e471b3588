"""Keeps subscriptions, and delivers the notices they ask for."""

__all__ = ["notifications", "subscriptions"]
