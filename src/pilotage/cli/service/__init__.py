"""Commands about the service and its book."""
