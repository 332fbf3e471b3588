"""Simulated agents: they run attempts, lose messages, die and lie."""
