"""The sites while jobs run: one worker each, and the watch of their configuration."""
