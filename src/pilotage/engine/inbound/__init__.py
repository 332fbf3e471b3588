"""What comes in: exchanges of pilots, reports of batch systems, operations of people, new jobs."""
