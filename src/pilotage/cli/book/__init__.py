"""Commands that maintain and query the book, log events, and subscribe to changes."""

__all__ = ["book", "query", "subscriptions", "tags"]
