"""Reads events of gLite L&B from ULM lines: one state for each job, whatever the order of the lines."""

from pilotage.book.ulm.importer import Imported, ImportedJob, read_ulm
from pilotage.book.ulm.lines import SequenceCode, UlmEvent, parse_code, parse_line

__all__ = ["Imported", "ImportedJob", "SequenceCode", "UlmEvent", "parse_code", "parse_line", "read_ulm"]
