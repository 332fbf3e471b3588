"""Commands that write, check and convert documents."""
