"""Answers HTTP requests: who may ask, what is answered, and which status an error becomes."""

__all__ = ["agent_exchange", "backend", "dispatcher", "listener", "services", "watchdogs"]
