"""Changes of the state that folds and decisions share: readiness, queues, slots, observations of sites."""

__all__ = ["forecast_timers", "occupancy", "queue_classes", "readiness", "site_observations"]
