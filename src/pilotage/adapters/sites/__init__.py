"""The ways to start pilots and bound attempts at a site: today this computer, by the agent in one file."""
