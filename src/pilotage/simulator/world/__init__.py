"""Simulates the world: clock, network, batch systems, users, faults, and a journal in memory."""

__all__ = [
    "assembly",
    "clock",
    "faults",
    "jobs",
    "journal",
    "nature",
    "network",
    "randomness",
    "service_process",
    "surroundings",
    "users",
]
