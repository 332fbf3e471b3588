"""Makes the decisions of the engine, one module for each kind."""

__all__ = [
    "attempts",
    "binding",
    "completion",
    "due_timers",
    "forecasts",
    "job_lifecycle",
    "lost_pilots",
    "provisioning",
    "pulling",
    "site_status",
]
