"""Decides on readiness, sites, attempts, commits and restarts: events in, decision events and effects out; no clock, no socket."""

__all__ = [
    "consistency",
    "decision_log",
    "decisions",
    "engine",
    "explain",
    "files",
    "forecasts",
    "healing",
    "inbound",
    "package_times",
    "past_pilots",
    "restore",
    "retry",
    "selection",
    "state",
    "transitions",
]
