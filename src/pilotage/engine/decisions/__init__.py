"""Makes the decisions of the engine, one module for each kind."""

__all__ = [
    "attempts",
    "binding",
    "completion",
    "due_timers",
    "forecast_provisioning",
    "forecasts",
    "grouping",
    "healing",
    "job_lifecycle",
    "lost_pilots",
    "provisioning",
    "pulling",
    "site_status",
    "stopped_activities",
]
