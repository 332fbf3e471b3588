"""Counts finished packages and their durations, by site and activity."""

__all__ = ["statistics"]
