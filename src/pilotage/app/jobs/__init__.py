"""Submits the jobs of a folder, watches them, and takes their results."""

__all__ = ["elsewhere", "kept_files", "results", "submit", "targets", "watch"]
