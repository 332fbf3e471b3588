"""Holds the tables of the engine: plain data, which imports nothing that acts on it."""

__all__ = ["clock", "job_queries", "jobs", "pending", "queues", "sites", "tables"]
