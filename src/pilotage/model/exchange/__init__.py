"""Defines the messages between agents, sites, people and the service."""

__all__ = ["exchange", "operations", "reports"]
