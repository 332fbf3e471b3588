"""Commands about the service and its book."""

__all__ = ["book", "serve", "subscriptions"]
