"""A connection to the service: over HTTP, a Unix socket, or a folder shared with a relay."""
