"""What commands share: options, output, progress, errors, names of jobs."""
