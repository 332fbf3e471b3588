"""Events of gLite L&B, read from ULM lines: one state for each job, whatever the order of the lines."""

from pilotage.book.ulm.codes import SequenceCode, parse_code
from pilotage.book.ulm.lines import UlmEvent, parse_line
from pilotage.book.ulm.reading import Imported, ImportedJob, read_ulm

__all__ = ["Imported", "ImportedJob", "SequenceCode", "UlmEvent", "parse_code", "parse_line", "read_ulm"]
