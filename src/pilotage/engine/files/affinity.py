"""Which of the reserved packages a pilot takes: one whose files its node has used before, since they may be in its memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import PilotState
from pilotage.engine.transitions.file_needs import files_of

_LOOKED_AT_MAX = 16  # packages
_FILES_MAX = 32  # of a package
_REMEMBERED_MAX = 256  # files of a node: the latest
_NODES_MAX = 4096  # the latest


def preferred(state: EngineState, pilot: PilotState, job: JobState, reserved: deque[int]) -> int:
    """The package to take among the first reserved ones of a class that have their files."""
    used = state.files.nodes.get(_node(pilot))
    first = reserved[0]
    if not used or len(reserved) == 1:
        return first
    files, best, most = files_of(job), first, 0
    for number in islice(reserved, _LOOKED_AT_MAX):
        if job.work[number].lacks:
            break
        known = sum(files.locator(file) in used for file in islice(files.of(number), _FILES_MAX))
        if known > most:
            best, most = number, known
    return best


def note_use(state: EngineState, pilot: PilotState, job: JobState, number: int) -> None:
    """A node uses the files of a package."""
    nodes, name, files = state.files.nodes, _node(pilot), files_of(job)
    used = nodes.get(name)
    if used is None:
        used = nodes[name] = OrderedDict()
        if len(nodes) > _NODES_MAX:
            nodes.popitem(last=False)
    nodes.move_to_end(name)
    for file in islice(files.of(number), _FILES_MAX):
        locator = files.locator(file)
        used[locator] = None
        used.move_to_end(locator)
    while len(used) > _REMEMBERED_MAX:
        used.popitem(last=False)


def _node(pilot: PilotState) -> str:
    """The node of a pilot; one without a name is its own."""
    return f"{pilot.site.name}/{pilot.node or pilot.name}"
