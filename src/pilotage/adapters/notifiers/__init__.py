"""Delivers notices by webhook and by mail, behind the port `Notifier`."""

__all__ = ["mail_address", "smtp"]
