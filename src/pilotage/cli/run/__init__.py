"""Commands that run, submit and simulate documents."""
