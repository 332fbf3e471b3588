"""Submits the jobs of a folder, watches them, and takes their results."""

__all__ = ["elsewhere", "results", "submit", "targets", "watch"]
