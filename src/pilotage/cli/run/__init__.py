"""Commands that run, submit and simulate documents."""

__all__ = ["run", "simulate", "submit"]
