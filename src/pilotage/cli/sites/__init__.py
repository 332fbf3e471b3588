"""Commands that add, test and manage sites."""

__all__ = ["files", "site"]
