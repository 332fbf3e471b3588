"""HTCondor DAGMan: DAG files and submit descriptions to definitions and back, with a list of what was lost on the way."""

from pilotage.language.formats.dagman.reader import read_dagman
from pilotage.language.formats.dagman.writer import write_dagman
from pilotage.language.losses import Loss, Losses

__all__ = ["Loss", "Losses", "read_dagman", "write_dagman"]
