"""Stores subscriptions, and delivers their notices."""

__all__ = ["notifications", "subscriptions"]
