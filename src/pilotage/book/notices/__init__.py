"""Decides who gets which notices: subscriptions, notices and digests."""

__all__ = ["digests", "notices", "subscriptions"]
