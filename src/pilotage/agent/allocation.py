"""The nodes that one batch job spans: whether all of them are still there when what ran on them has failed.

A program on several nodes that loses one of them ends as if it had failed by itself, long before the batch system knows of it:
what its launcher returns then says nothing. So the nodes are asked.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

ANSWER_SECONDS = 30.0
_LINE_CHARACTERS_MAX = 300


class Called(NamedTuple):
    """What came of a command: no exit status where it could not be started, or did not end in time."""

    exit_status: int | None
    stderr: str = ""
    in_time: bool = True


def lost_node(
    environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], Called] | None = None
) -> str:
    """What is wrong with a node of the batch job that this is, in a line; empty where all answer, or nobody can tell.

    Only Slurm lets a job ask its own nodes in one way at every site. That this node answers alone, and not all of them
    together, is what tells a lost one from a site where jobs may not ask.
    """
    known = os.environ if environment is None else environment
    call = run or _run
    nodes, own = known.get("SLURM_JOB_NUM_NODES", ""), known.get("SLURMD_NODENAME", "")
    if not nodes.isdecimal() or int(nodes) < 2 or not own:
        return ""
    everywhere = call(_asking(int(nodes)))
    if everywhere.exit_status == 0 or (everywhere.exit_status is None and everywhere.in_time):
        return ""
    if call([*_asking(1)[:-1], f"--nodelist={own}", "true"]).exit_status != 0:
        return ""
    said = everywhere.stderr.strip().splitlines()
    return said[0][:_LINE_CHARACTERS_MAX] if said else f"no answer in {ANSWER_SECONDS:g} s"


def _asking(nodes: int) -> list[str]:
    # Beside the steps of what failed, which may still hold everything that the job has.
    words = ["srun", "--overlap", "--mem=0", "--input=none", "--ntasks-per-node=1"]
    return [*words, f"--nodes={nodes}", f"--ntasks={nodes}", "true"]


def _run(words: Sequence[str]) -> Called:
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except OSError as error:
        return Called(None, str(error))
    except subprocess.TimeoutExpired as slow:
        return Called(None, (slow.stderr or b"").decode("utf-8", "replace"), in_time=False)
    return Called(done.returncode, done.stderr.decode("utf-8", "replace"))
