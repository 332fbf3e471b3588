"""Changes of the state that folds and decisions share: readiness, queues, slots, what sites show."""
