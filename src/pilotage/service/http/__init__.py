"""Answers HTTP requests: authenticates, dispatches, and turns errors into statuses."""

__all__ = ["agent_exchange", "backend", "dispatcher", "errors", "listener", "messages", "services", "watchdogs"]
