"""Holds the tables of the engine: plain data that imports no logic."""

__all__ = [
    "activities",
    "caches",
    "clock",
    "job_files",
    "job_queries",
    "jobs",
    "latencies",
    "pending",
    "queues",
    "sites",
    "tables",
]
