"""Defines events and their payloads, as the book stores them."""

__all__ = ["events", "file_payloads", "healing_payloads", "payloads"]
