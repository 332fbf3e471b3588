"""Acts at the sites while jobs run, with one worker for each, and watches their configuration."""

__all__ = ["agent_worker", "config_watch", "pool", "status", "worker"]
