"""Commands that start, stop and examine the service."""

__all__ = ["serve"]
