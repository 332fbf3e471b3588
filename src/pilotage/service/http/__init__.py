"""The HTTP side of the service: what it answers, to whom, and how faults become statuses."""
