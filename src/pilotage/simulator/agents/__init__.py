"""Simulates agents that run attempts, lose messages, die and lie."""

__all__ = ["agent", "attempt"]
