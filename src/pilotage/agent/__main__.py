"""The agent's command line: `agent.pyz pilot …` holds the slots of a node and runs attempts for the service."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pilotage.agent.pilot.pilot import PilotSettings

REQUEST_VARIABLE = "PILOTAGE_REQUEST"
"""Environment variable with the key of the request that this batch job was submitted for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent and return its exit status."""
    chosen = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    if chosen.command == "settle":
        return _settle(chosen)
    if chosen.command == "site":
        from pilotage.agent.site.program import main as run_site_agent

        return run_site_agent(chosen)
    gc.disable()  # until the pilot runs: imported modules live as long as the process
    from pilotage.agent.supervisor import PilotRecord, supervise

    if os.getpid() != os.getsid(0):
        try:
            os.setsid()
        except PermissionError:  # a process group leader, as a shell starts it, already has a group of its own
            os.setpgid(0, 0)
    return supervise(_settings(chosen), PilotRecord(chosen.record))


def _settle(chosen: argparse.Namespace) -> int:
    from pathlib import Path

    from pilotage.agent.pilot.takeover import settle

    reach = {"announcement": chosen.announcement, "ca_file": chosen.ca_file}
    delivered = settle(
        Path(chosen.state), token_file=chosen.token_file, connect=lambda shown: shown.connect(chosen.server, **reach)
    )
    return 0 if delivered else 1


def _parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    import argparse

    from pilotage.agent.resources import KINDS

    parser = argparse.ArgumentParser(prog="pilotage-agent", description="The agent of pilotage.")
    version = getattr(sys.modules.get("pilotage"), "__version__", "unknown")
    parser.add_argument("--version", action="version", version=f"pilotage-agent {version}")
    commands = parser.add_subparsers(required=True, dest="command")
    text: dict[str, Any] = {"default": ""}
    pilot = commands.add_parser("pilot", help="hold slots and run attempts from the service")
    settle = commands.add_parser("settle", help="clean up after dead pilots and deliver their events")
    site = commands.add_parser("site", help="submit and cancel pilots at a cluster for the service")
    if "site" in arguments[:1]:
        from pilotage.agent.site.program import add_options

        add_options(site)
    for each in (pilot, settle):
        each.add_argument("--server", required=True, metavar="ADDRESS", help="unix:PATH or http://HOST:PORT")
        each.add_argument("--announcement", metavar="FILE", help="file where the service announces its address", **text)
        each.add_argument("--token-file", metavar="FILE", help="file with the token to authenticate with", **text)
        each.add_argument("--ca-file", metavar="FILE", help="the only CA certificate to trust", **text)
        each.add_argument("--state", required=True, metavar="DIR", help="folder for spools and scratch folders")
    request = os.environ.get(REQUEST_VARIABLE, "")
    default: dict[str, Any] = {"default": request} if request else {"required": True}
    pilot.add_argument("--request", metavar="KEY", help="key of the request for this pilot", **default)
    pilot.add_argument("--site", required=True, metavar="NAME", help="name of the site")
    pilot.add_argument(
        "--serves", metavar="JOB:PACKAGE:ATTEMPT", help="run this attempt, and those that share its batch job", **text
    )
    pilot.add_argument("--shared-state", action="store_true", help="the state folder is shared with other computers")
    pilot.add_argument(
        "--scratch-folder",
        metavar="DIR",
        help="scratch folder for packages, such as $TMPDIR; default: in the state folder",
        **text,
    )
    pilot.add_argument("--node", metavar="NAME", help="name of this computer", **text)
    pilot.add_argument("--slots", type=int, default=0, metavar="N", help="cores to use; 0: all of them")
    for kind in KINDS:
        pilot.add_argument(kind.option, dest=kind.name, type=int, default=0, metavar=kind.metavar, help=kind.help)
    pilot.add_argument("--backlog", type=int, default=64, metavar="N", help="attempts to queue beyond the slots")
    pilot.add_argument("--wall", type=float, default=0.0, metavar="SECONDS", help="wall time; 0: no limit")
    pilot.add_argument("--idle", type=float, default=300.0, metavar="SECONDS", help="end after this time without work")
    pilot.add_argument("--outlive", type=float, default=21_600.0, metavar="SECONDS", help="end without service after")
    pilot.add_argument(
        "--deserted", type=float, default=21_600.0, metavar="SECONDS", help="the same, with nothing left to run"
    )
    pilot.add_argument(
        "--untold", type=float, default=1800.0, metavar="SECONDS", help="the same, with only events left to deliver"
    )
    pilot.add_argument("--grace", type=float, default=10.0, metavar="SECONDS", help="time to end after SIGTERM")
    pilot.add_argument("--record", type=int, default=-1, metavar="DESCRIPTOR", help="open file for the pilot's record")
    return parser


def _settings(chosen: argparse.Namespace) -> PilotSettings:
    from pilotage.agent.allocation import seconds_left
    from pilotage.agent.pilot.pilot import PilotSettings, memory_bytes, usable_folder
    from pilotage.agent.resources import Resources

    node = chosen.node or os.uname().nodename
    state = os.path.abspath(chosen.state)
    if chosen.shared_state:
        # Only a pilot on the same node can see whether another one lives, and end its processes.
        state = os.path.join(state, node)
    os.makedirs(state, mode=0o700, exist_ok=True)
    scratch_folder = usable_folder(chosen.scratch_folder)
    disk = os.statvfs(scratch_folder or state)
    job, package, attempt = chosen.serves.rsplit(":", 2) if chosen.serves else ("", "", "")
    found = Resources(
        cores_hundredths=100 * (chosen.slots or os.cpu_count() or 1),
        memory_bytes=memory_bytes(),
        scratch_bytes=disk.f_bavail * disk.f_frsize,
    )
    return PilotSettings(
        pilot=f"{chosen.request}.{os.urandom(4).hex()}",
        request=chosen.request,
        site=chosen.site,
        state=state,
        server=chosen.server,
        announcement=chosen.announcement,
        token_file=chosen.token_file,
        ca_file=chosen.ca_file,
        node=node,
        scratch_folder=scratch_folder,
        in_batch_job=chosen.shared_state,
        serves={"job": job, "package": package, "attempt": int(attempt)} if chosen.serves else None,
        capacity=Resources._make(getattr(chosen, name) or there for name, there in found._asdict().items()),
        backlog=0 if chosen.serves else chosen.backlog,
        wall_seconds=chosen.wall or seconds_left(),
        idle_seconds=chosen.idle,
        outlive_seconds=chosen.outlive,
        deserted_seconds=chosen.deserted,
        untold_seconds=chosen.untold,
        grace_seconds=chosen.grace,
    )


if __name__ == "__main__":
    sys.exit(main())
