"""The contract of the port `Journal`: every adapter passes all of it, on a real store."""
