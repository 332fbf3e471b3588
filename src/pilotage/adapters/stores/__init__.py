"""Where the files of jobs are kept: so far a folder that service and agents both see."""
