"""Commands about sites."""

__all__ = ["site"]
