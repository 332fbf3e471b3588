"""Changes of the state that folds and decisions share: readiness, queues, slots, observations of sites."""

__all__ = ["occupancy", "queue_classes", "readiness", "site_observations"]
