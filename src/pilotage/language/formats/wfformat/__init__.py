"""Converts instances of WfFormat 1.5, the JSON of WfCommons, to definitions and back, and lists what is lost."""

from __future__ import annotations

from pilotage.language.formats.wfformat.reader import read_wfformat
from pilotage.language.formats.wfformat.writer import write_wfformat

__all__ = ["read_wfformat", "write_wfformat"]
