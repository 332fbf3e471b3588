"""Changes of the state that folds and decisions share: readiness, queues, slots, observations of sites."""

__all__ = [
    "early_start",
    "file_needs",
    "forecast_timers",
    "occupancy",
    "queue_classes",
    "readiness",
    "site_observations",
]
