"""Commands that forecast how many pilots start, and how long work takes on them."""

__all__ = ["forecast"]
