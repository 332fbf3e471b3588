"""Answers questions about the book for HTTP, the command line and the monitor."""

__all__ = ["access", "packages", "queries", "view_builders", "views"]
