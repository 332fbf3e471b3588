"""The service of a folder: started, found, stopped, or done without."""
