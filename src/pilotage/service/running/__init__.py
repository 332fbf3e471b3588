"""Running jobs: the core of the service among threads, files and sites, and what agents must know to run an attempt."""
