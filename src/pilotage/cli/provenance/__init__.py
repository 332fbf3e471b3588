"""Commands about the records of jobs that are over."""

__all__ = ["provenance"]
