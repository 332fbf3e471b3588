"""Decides: readiness, sites, attempts, commits, restarts. Events in, decision events and effects out; no clock, no socket."""
