"""Submits pilots from inside a cluster, and relays messages of nodes that cannot reach the service."""

__all__ = ["program"]
