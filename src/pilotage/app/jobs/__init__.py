"""Submits the jobs of a folder, watches them, and takes their results."""

__all__ = ["results", "submit", "targets", "watch"]
