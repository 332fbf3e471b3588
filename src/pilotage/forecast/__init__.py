"""Forecasts from measured latencies how many pilots start by when, and how long work takes; numpy only, and pure."""

__all__ = [
    "available",
    "censoring",
    "completion",
    "conditioning",
    "fault_ratio",
    "fit",
    "history",
    "latency",
    "makespan",
    "package_times",
    "pilot_records",
    "run_time",
    "score",
    "sequential",
    "steps",
    "time_left",
]
