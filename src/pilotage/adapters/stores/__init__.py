"""Stores the files of jobs in a folder that the service and its agents both see, and an index of earlier results."""

__all__ = ["content_store", "folder_tree", "kept_content", "logs", "put_copies", "results_index", "work_database"]
