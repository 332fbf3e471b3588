"""Made-up worlds with checkers: what `simulate` without a job runs."""
