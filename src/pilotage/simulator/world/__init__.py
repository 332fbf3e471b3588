"""The virtual world: clock, network, batch systems, users, faults, and a journal in memory."""
