"""Commands that maintain the book, log events into it, query it and follow its changes."""

__all__ = ["book", "query", "subscriptions", "tags"]
