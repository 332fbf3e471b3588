"""Simulates the world: clock, network, batch systems, stores, users, faults, and a journal in memory."""

__all__ = [
    "agent_context",
    "assembly",
    "batch_system",
    "behaviour",
    "clock",
    "faults",
    "jobs",
    "journal",
    "network",
    "randomness",
    "service_process",
    "stores",
    "transfers",
    "users",
]
