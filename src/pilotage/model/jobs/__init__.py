"""What a job is: its definition, submission, plan, graph and layout."""
