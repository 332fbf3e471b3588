"""Keeps the files of jobs in a folder that the service and its agents both see, and an index of what was made before."""

__all__ = ["folder_tree", "logs", "results_index", "work_database"]
