"""Decides who is told of what: subscriptions, notices and digests."""

__all__ = ["digests", "notices", "subscriptions"]
