"""Converts DAG files and submit descriptions of HTCondor DAGMan to definitions and back, and lists what is lost."""

from pilotage.language.formats.dagman.reader import read_dagman
from pilotage.language.formats.dagman.writer import write_dagman
from pilotage.language.losses import Loss, Losses

__all__ = ["Loss", "Losses", "read_dagman", "write_dagman"]
