"""What agents, sites and people say to the service, and what it answers."""
