"""Asks the batch system about the job this agent runs in: its remaining time, and whether all its nodes are alive.

A program on several nodes that loses one of them fails like any other, long before the batch system notices, and the
exit status of its launcher does not tell why. So the agent checks the nodes itself. Only Slurm has one way to do so at
every site.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

ANSWER_SECONDS = 30.0
"""How long all nodes together may take to answer."""
_END_SECONDS_MAX = 2.0  # an agent that was told to end has little time
_START_SECONDS_MAX = 10.0  # an agent waits no longer than this before it starts
_LINE_CHARACTERS_MAX = 300


class CommandResult(NamedTuple):
    """Result of a command; `exit_status` is None if it could not be started or timed out."""

    exit_status: int | None
    stderr: str = ""
    stdout: str = ""
    in_time: bool = True


def seconds_left(
    environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], CommandResult] | None = None
) -> float:
    """Remaining time of our batch job; 0 if it has no limit or the limit is unknown."""
    known = os.environ if environment is None else environment
    job = known.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return 0.0
    from pilotage.agent.batch.values import seconds  # loads all batch systems, which most agents never need

    call = run or partial(_run, seconds_max=_START_SECONDS_MAX)
    answer = call(["squeue", "--noheader", f"--jobs={job}", "--format=%L"])
    return float(seconds(answer.stdout)) if answer.exit_status == 0 else 0.0


def is_over(
    environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], CommandResult] | None = None
) -> bool:
    """Tell whether our batch job reached its time limit; False if that is unknown."""
    known = os.environ if environment is None else environment
    job = known.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return False
    call = run or partial(_run, seconds_max=_END_SECONDS_MAX)
    answer = call(["squeue", "--noheader", f"--jobs={job}", "--format=%r"])
    return answer.exit_status == 0 and answer.stdout.split() == ["TimeLimit"]


def lost_node(
    environment: Mapping[str, str] | None = None, run: Callable[[Sequence[str]], CommandResult] | None = None
) -> str:
    """What is wrong with a node of our batch job, in one line; empty if all nodes answer or none can be asked.

    If this node alone answers and all of them together do not, one is lost; if neither does, jobs may not ask at this
    site.
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
    lines = everywhere.stderr.strip().splitlines()
    return lines[0][:_LINE_CHARACTERS_MAX] if lines else f"no answer in {ANSWER_SECONDS:g} s"


def _asking(nodes: int) -> list[str]:
    # `--overlap`: the failed step may still hold all resources of the job.
    words = ["srun", "--overlap", "--mem=0", "--input=none", "--ntasks-per-node=1"]
    return [*words, f"--nodes={nodes}", f"--ntasks={nodes}", "true"]


def _run(words: Sequence[str], seconds_max: float = ANSWER_SECONDS) -> CommandResult:
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds_max,
            check=False,
        )
    except OSError as error:
        return CommandResult(None, str(error))
    except subprocess.TimeoutExpired as slow:
        return CommandResult(None, (slow.stderr or b"").decode("utf-8", "replace"), in_time=False)
    return CommandResult(
        done.returncode, done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace")
    )
