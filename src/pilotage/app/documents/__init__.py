"""Finds, checks and converts the documents of a folder, and reads the values chosen for their parameters."""

__all__ = ["documents", "map", "parameters", "retry_rules"]
