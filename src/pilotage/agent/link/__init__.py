"""Connects to the service: over HTTP, a Unix socket, or a folder shared with a relay."""

__all__ = ["connect", "download", "folder_link", "http", "link", "tls"]
