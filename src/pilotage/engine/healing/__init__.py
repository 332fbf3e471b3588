"""Finds incidents of jobs, draws one, and says what to do about it: a MAPE-K loop (vip-execution-service, section 3)."""

__all__ = [
    "association",
    "degrees",
    "grain",
    "healing",
    "incidents",
    "job_health",
    "levels",
    "phase_times",
    "replication",
]
