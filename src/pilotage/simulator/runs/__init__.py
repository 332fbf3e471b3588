"""Runs a real job in virtual time, as `simulate JOB` does."""

__all__ = [
    "behaviour",
    "charts",
    "comparison",
    "experiment",
    "fitting",
    "healing",
    "healing_chart",
    "replication_policies",
    "run",
]
