"""The pilot: holds the slots of a node, exchanges with the service, and runs attempts."""
