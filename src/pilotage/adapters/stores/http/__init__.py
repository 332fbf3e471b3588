"""Stores files on web servers: ranged reads of any of them, and writes to those that speak WebDAV."""

__all__ = ["connections", "multistatus", "store"]
