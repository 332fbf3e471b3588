"""Starts, finds and stops the service of a folder, or answers from its book without one."""

__all__ = ["background", "credentials", "offline", "serve", "serve_book", "serve_index", "session"]
