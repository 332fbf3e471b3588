"""Starts pilots and bound attempts at a site: on this computer, at a batch system here or over ssh, or through a site agent."""

__all__ = ["batch", "commands", "install", "local", "ssh_agent", "zipapp"]
