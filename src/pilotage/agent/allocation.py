"""What an agent asks its batch system about the job that it runs in: how long that may last, and whether its nodes are there.

A program on several nodes that loses one of them ends as if it had failed by itself, long before the batch system knows of it:
what its launcher returns then says nothing. So the nodes are asked. Only Slurm lets a job ask in one way at every site.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

ANSWER_SECONDS = 30.0
"""So long all nodes may take to answer."""
_END_SECONDS_MAX = 2.0  # whoever is told to end has little time
_START_SECONDS_MAX = 10.0  # longer than this an agent does not wait before it begins
_LINE_CHARACTERS_MAX = 300


class Called(NamedTuple):
    """What came of a command: no exit status where it could not be started, or did not end in time."""

    exit_status: int | None
    stderr: str = ""
    stdout: str = ""
    in_time: bool = True


def seconds_left(
    environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], Called] | None = None
) -> float:
    """How long the batch job that this is may still last; 0 where it has no limit, or nobody can tell."""
    known = os.environ if environment is None else environment
    job = known.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return 0.0
    from pilotage.agent.batch.values import seconds  # with all batch systems, which most agents never need

    call = run or partial(_run, seconds_max=_START_SECONDS_MAX)
    told = call(["squeue", "--noheader", f"--jobs={job}", "--format=%L"])
    return float(seconds(told.stdout)) if told.exit_status == 0 else 0.0


def is_over(environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], Called] | None = None) -> bool:
    """Whether the batch job that this is was told to end because its time is over; not where nobody can tell."""
    known = os.environ if environment is None else environment
    job = known.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return False
    call = run or partial(_run, seconds_max=_END_SECONDS_MAX)
    told = call(["squeue", "--noheader", f"--jobs={job}", "--format=%r"])
    return told.exit_status == 0 and told.stdout.split() == ["TimeLimit"]


def lost_node(
    environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], Called] | None = None
) -> str:
    """What is wrong with a node of the batch job that this is, in a line; empty where all answer, or nobody can tell.

    That this node answers alone, and not all of them together, is what tells a lost one from a site where jobs may not ask.
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


def _run(words: Sequence[str], seconds_max: float = ANSWER_SECONDS) -> Called:
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds_max,
            check=False,
        )
    except OSError as error:
        return Called(None, str(error))
    except subprocess.TimeoutExpired as slow:
        return Called(None, (slow.stderr or b"").decode("utf-8", "replace"), in_time=False)
    return Called(done.returncode, done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace"))
