"""Counts and durations of finished packages, by site and activity."""
