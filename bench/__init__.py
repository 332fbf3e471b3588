"""Every number in the docs comes from here, each measured beside its floor in the same run."""
