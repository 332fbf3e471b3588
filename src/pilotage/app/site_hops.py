"""The hops between here and a result at a site, and which of them failed by what a pilot wrote before it ended."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from pilotage.model.site_entry import StartedBy

HopName = Literal[
    "reach", "scheduler", "install", "service", "submit", "starts", "python", "server", "exchange", "package", "outputs"
]
HOPS: dict[HopName, str] = {
    "reach": "the login node is reached",
    "scheduler": "the batch system answers",
    "install": "the agent is installed and starts there",
    "service": "the service knows the site",
    "submit": "a pilot is submitted",
    "starts": "the batch system starts it",
    "python": "Python starts the agent on the node",
    "server": "the node reaches the service",
    "exchange": "the service takes what it says",
    "package": "it runs a package",
    "outputs": "its output comes back",
}
"""Every hop in order, and what holds when it is passed."""

_SAYS = re.compile(r"pilotage-agent: ")
_TOO_OLD = re.compile(r"Python 3\.\d+ or newer is needed")
_PYTHON = re.compile(
    r"command not found|: not found|No such file or directory|Permission denied|SyntaxError|ModuleNotFoundError|ImportError"
    r"|cannot execute|can't open file|Traceback|bad interpreter|module: (command )?not found",
)
_DENIED = re.compile(r"HTTP 40[13]|is not taken")
_ANSWERED = re.compile(r"HTTP [0-9]{3}|its answer cannot be understood|it answers somebody else")
_UNHEARD = re.compile(r"no answer from the service|did not answer|certificate|refused|unreachable|timed out|resolve")
_NOT_SHARED = re.compile(r"could not write to")
_NOT_STARTED = re.compile(r"the batch system could not start it")


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One hop: whether it was passed, how long it took, and what was seen."""

    hop: HopName
    ok: bool
    seconds: float
    message: str = ""
    stderr: str = ""  # the pilot's own words, or those of whoever stood in the way
    hint: str = ""  # what to do about one that failed


def failed_at(stderr: str, *, reason: str = "") -> HopName:
    """The hop at which a pilot ended that never spoke, by what it wrote and how its batch system says that it ended."""
    if _NOT_STARTED.search(stderr):
        return "starts"
    if _TOO_OLD.search(stderr):
        return "python"
    if _DENIED.search(stderr) or _ANSWERED.search(stderr):
        return "exchange"
    if _SAYS.search(stderr):
        return "server"
    if _NOT_SHARED.search(stderr) or reason in ("platform-failure", "cancelled", "preempted", "held"):
        return "starts"
    if _PYTHON.search(stderr):
        return "python"
    if _UNHEARD.search(stderr):
        return "server"
    return "python" if stderr.strip() else "starts"


def hint_for(hop: HopName, stderr: str, *, started_by: StartedBy = "service") -> str:
    """What to do about a hop that failed; where a site agent submits, it may be that which is not there."""
    if hop == "starts" and _NOT_SHARED.search(stderr):
        return "name a `folder` in the site's entry that is on a disk which all nodes share"
    if started_by == "agent" and hop in _AGENT_HINTS:
        return _AGENT_HINTS[hop]
    return _HINTS.get(hop, "")


_AGENT_HINTS: dict[HopName, str] = {
    "submit": "look whether its site agent runs there and reaches the service; then whether its `queue` takes pilots",
    "server": "have its site agent relay for the nodes: start it with --spool, or with --listen HOST:PORT",
}


_HINTS: dict[HopName, str] = {
    "reach": "try `ssh` by hand: it must let you in without a question",
    "scheduler": "look whether its commands work in a login shell there; name what they need by `setup` in the site's entry",
    "install": "name another `folder` or `python` in the site's entry",
    "service": "start the service again: pilotage serve --stop, then pilotage serve",
    "submit": "name another `queue` or `account` in the site's entry, or ask for less",
    "starts": "see what the batch system says of it; a longer --timeout waits for a longer queue",
    "python": "name a `python` that the nodes have, or the lines of `setup` that bring one",
    "server": "let the nodes reach it (service.address, --host), or let a site agent relay: `started_by: agent`",
    "exchange": "remove the site's folder there; clocks may differ by a minute at most",
    "package": "see its log: it is the pilot's node that runs it",
    "outputs": "see the log of the service",
}
