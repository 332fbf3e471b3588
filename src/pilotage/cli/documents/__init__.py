"""Commands that write, check and convert documents."""

__all__ = ["check", "init", "rules"]
