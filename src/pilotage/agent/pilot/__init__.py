"""Holds the slots of a node, exchanges messages with the service, and runs attempts."""

__all__ = ["backlog", "exchange", "fetch", "pilot", "spool", "takeover"]
