"""Delivers notices by webhook and by mail, behind the port `Notifier`."""

__all__ = ["smtp"]
