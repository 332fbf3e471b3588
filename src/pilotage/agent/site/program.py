"""`agent.pyz site …`: the agent of a site as a program, with its relay, its lock and its line in the crontab."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.agent.errors import AgentError
from pilotage.agent.link.link import Address
from pilotage.agent.site.state_folder import AlreadyRuns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pilotage.agent.site.state_folder import FolderLock, SiteFolder, SiteRecords

RUNS_ALREADY, FAILED = 3, 1
LEAVES_SECONDS, LOOK_SECONDS = 10.0, 0.2
"""So long one that was told to leave may take, and so often the next one looks whether it has left."""
LOG_FILE = "site-agent.log"
HOME_FOLDER = ".pilotage-site"
_SITE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,59}")
_ANYWHERE = ("", "0.0.0.0", "::")  # nodes of the cluster must reach it


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the program takes."""
    parser.add_argument("--server", required=True, metavar="ADDRESS", help="https://HOST:PORT or unix:PATH")
    parser.add_argument("--site", required=True, metavar="NAME", help="the site that it is at")
    parser.add_argument(
        "--folder", default="", metavar="DIR",
        help=f"where it works, on a disk that all nodes share; unless given ~/{HOME_FOLDER}/NAME of the site",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", default="auto", metavar="NAME",
        help="the only batch system that it drives; auto: whichever the entry of the site names",
    )  # fmt: skip
    parser.add_argument("--token-file", default="", metavar="FILE", help="what it shows to the service")
    parser.add_argument(
        "--ca-file", default="", metavar="FILE", help="the only authority whose certificate it believes"
    )
    parser.add_argument(
        "--listen", default="", metavar="HOST:PORT", help="relay for nodes that reach this computer alone"
    )
    parser.add_argument("--spool", action="store_true", help="relay for nodes that share nothing but the folder")
    parser.add_argument(
        "--settle", type=float, default=30.0, metavar="SECONDS", help="until what an earlier agent submitted is listed"
    )
    parser.add_argument(
        "--deserted", type=float, default=0.0, metavar="SECONDS", help="end without the service after; 0: never"
    )
    parser.add_argument(
        "--started-as", default="", metavar="MARK", help="what the service that starts it calls this start"
    )
    parser.add_argument("--unless-running", action="store_true", help="end without a word where it runs already")
    cron = parser.add_mutually_exclusive_group()
    cron.add_argument(
        "--install-cron", action="store_true",
        help="have cron start it with this computer, and again where it was killed, and end",
    )  # fmt: skip
    cron.add_argument("--uninstall-cron", action="store_true", help="have cron start it no more, and end")


def main(chosen: argparse.Namespace) -> int:
    """Run it; the exit status."""
    try:
        folder = folder_of(chosen.folder, site=chosen.site)
        Address.parse(chosen.server)
        if chosen.install_cron or chosen.uninstall_cron:
            return _cron(chosen, folder)
        return _work(chosen, folder)
    except AlreadyRuns as error:
        if chosen.unless_running:
            return 0
        sys.stderr.write(f"pilotage-agent: {error}\n")
        return RUNS_ALREADY
    except (AgentError, ValueError, OSError) as error:
        sys.stderr.write(f"pilotage-agent: {error}\n")
        return FAILED


def folder_of(named: str, *, site: str) -> Path:
    """Where the agent of a site works: where its user says, else in a folder of the site below their home.

    Home folders of clusters are on a disk that the nodes share. Two sites have two folders, since an agent has its own to
    itself. Raises `ValueError` for what is no name of a site.
    """
    if not named and not _SITE.fullmatch(site):
        raise ValueError(f"--site is no name of a site, so that there is no folder of its own for it: {site!r}")
    return Path(os.path.abspath(os.path.expanduser(named or f"~/{HOME_FOLDER}/{site}")))


def _cron(chosen: argparse.Namespace, folder: Path) -> int:
    if chosen.uninstall_cron:
        said = "removed from" if uninstall(folder) else "not in"
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        changed = install(_command(chosen, folder), folder, log=folder / LOG_FILE)
        said = "put into" if changed else "already in"
    sys.stdout.write(f"the agent of site {chosen.site} is {said} your crontab\n")
    return 0


def _command(chosen: argparse.Namespace, folder: Path) -> list[str]:
    words = [sys.executable, "-I", "-S", str(_own_file()), "site", f"--server={chosen.server}", f"--site={chosen.site}"]
    words += [f"--folder={folder}", f"--scheduler={chosen.scheduler}"]
    for option, value in (("token-file", chosen.token_file), ("ca-file", chosen.ca_file)):
        words += [f"--{option}={os.path.abspath(value)}"] if value else []
    words += [f"--listen={chosen.listen}"] if chosen.listen else []
    return [*words, *(["--spool"] if chosen.spool else []), "--unless-running"]


def _own_file() -> Path:
    """The archive that this is; raises `OSError` where it is none: nothing could be started at a node then."""
    file = Path(os.path.abspath(sys.argv[0]))
    if not file.is_file() or file.suffix != ".pyz":
        raise OSError(f"{file} is not the agent in one file: start agent-VERSION.pyz, which `pilotage` makes")
    return file


def _work(chosen: argparse.Namespace, folder: Path) -> int:
    from pilotage.agent.link.connect import Credentials, connect
    from pilotage.agent.pilot.pilot import say
    from pilotage.agent.site.agent import SiteAgent, SiteAgentSettings
    from pilotage.agent.site.relay import Relaying
    from pilotage.agent.site.state_folder import MEMORY_FILE, FolderLock, SiteFolder, SiteRecords

    version = str(getattr(sys.modules.get("pilotage"), "__version__", "unknown"))
    place = SiteFolder(folder, site=chosen.site, version=version, token_file=chosen.token_file, ca_file=chosen.ca_file)
    place.make()
    asked: list[SiteAgent] = []

    def lost() -> None:
        for each in asked:
            each.ask_to_leave("another agent of this folder has taken over")

    lock = FolderLock(folder, lost=lost)
    _take(lock, patience_seconds=LEAVES_SECONDS if chosen.started_as else 0.0)
    try:
        memory = SiteRecords(folder / MEMORY_FILE)
        place.install(_own_file())
        relaying = Relaying(chosen.server, ca_file=chosen.ca_file, say=say)
        _start_relays(relaying, chosen, place, memory)
        place.announce()
        credentials = Credentials(chosen.token_file, place.own_token_file)
        settings = SiteAgentSettings(
            chosen.site, version, chosen.scheduler, chosen.settle, chosen.deserted, chosen.started_as
        )
        agent = SiteAgent(
            settings,
            place,
            memory,
            connect=lambda: connect(chosen.server, ca_file=chosen.ca_file, token=credentials),
            credentials=credentials,
        )
        asked.append(agent)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: agent.ask_to_leave(signal.Signals(number).name))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it goes on when who started it hangs up
        say(f"the agent of site {chosen.site} works; pilots ask {place.server}")
        why = agent.run()
        relaying.stop()
        say(f"the agent of site {chosen.site} ends: {why}; its pilots go on")
    finally:
        lock.release()
    return 0


def _take(lock: FolderLock, *, patience_seconds: float) -> None:
    """Take the lock of the folder; raises `AlreadyRuns`, at once or where who has it does not leave."""
    until = time.monotonic() + patience_seconds
    while True:
        try:
            lock.take()
        except AlreadyRuns:
            if time.monotonic() >= until:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return


def _start_relays(relaying: object, chosen: argparse.Namespace, place: SiteFolder, memory: SiteRecords) -> None:
    """Start what was asked for, and say what pilots are told."""
    from pilotage.agent.site.relay import Relaying, bound

    assert isinstance(relaying, Relaying)
    listener = None
    place.server = chosen.server
    # A socket of this computer is no use to a node.
    spool = chosen.spool or (chosen.server.startswith("unix:") and not chosen.listen)
    if spool:
        place.server = f"spool:{place.relay_folder}"
    if chosen.listen:
        host, _, port = chosen.listen.rpartition(":")
        if not port.isdigit():
            raise ValueError(f"--listen takes HOST:PORT, not {chosen.listen!r}")
        host = host.strip("[]")
        # Pilots that live know the port of before.
        listener = _bound_again(host, int(port), memory.port) if not int(port) else bound(host, int(port))
        memory.port = listener.getsockname()[1]
        memory.save()
        told = os.uname().nodename if host in _ANYWHERE else host
        place.server = f"http://[{told}]:{memory.port}" if ":" in told else f"http://{told}:{memory.port}"
    if listener is not None or spool:
        relaying.start(listener=listener, folder=place.relay_folder if spool else None)


def _bound_again(host: str, port: int, before: int) -> socket.socket:
    from pilotage.agent.site.relay import bound

    if before:
        try:
            return bound(host, before)
        except OSError:
            pass  # it is somebody else's by now
    return bound(host, port)


# Two lines in the user's own crontab, by which the agent of a site comes back when its computer does, and where it
# was killed.
#
# Both start it in a login shell: cron itself gives next to nothing, and the commands of the batch system would not
# be found.

TIMES = ("@reboot", "*/5 * * * *")
"""When it is started: one that runs is left alone."""
_NONE_YET = "no crontab for"
_SECONDS = 30


class NoCrontab(AgentError):
    """There is no crontab here, or it may not be used; the message says what to do instead."""


def mark_of(folder: Path) -> str:
    """What the lines of a folder's agent end with, by which they are known again."""
    return f"# pilotage site agent {folder}"


def lines_for(command: Sequence[str], folder: Path, *, log: Path) -> list[str]:
    """The lines: the command in a login shell at each of its times, and what it says in a file, but nothing of the profile."""
    shell = shutil.which("bash") or "/bin/sh"
    script = f'exec "$@" >>{shlex.quote(str(log))} 2>&1'
    words = f"{shlex.join([shell, '-l', '-c', script, shell, *command])} >/dev/null 2>&1"
    if any(char in words + str(folder) for char in "\n\r"):
        raise NoCrontab("a line of a crontab cannot hold a name of several lines", subject=str(folder))
    # A % ends the command in a crontab, unless a backslash stands before it.
    return [f"{when} {words} {mark_of(folder)}".replace("%", "\\%") for when in TIMES]


def install(command: Sequence[str], folder: Path, *, log: Path) -> bool:
    """Put the lines into the crontab, in place of older ones; whether that changed anything."""
    before = _read()
    after = [*_others(before, folder), *lines_for(command, folder, log=log)]
    return _write(before, after)


def uninstall(folder: Path) -> bool:
    """Remove the lines; whether there was one."""
    before = _read()
    return _write(before, _others(before, folder))


def _others(lines: Sequence[str], folder: Path) -> list[str]:
    mark = mark_of(folder).replace("%", "\\%")
    starts = tuple(f"{when} " for when in TIMES)
    return [line for line in lines if not (line.startswith(starts) and line.endswith(f" {mark}"))]


def _program() -> str:
    program = shutil.which("crontab")
    if program is None:
        raise NoCrontab(
            "there is no crontab here",
            next_step="start the agent again by hand after a restart of this computer, or by what the site offers instead",
        )
    return program


def _read() -> list[str]:
    done = subprocess.run(
        [_program(), "-l"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
    )
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and _NONE_YET not in said:
        raise NoCrontab("the crontab cannot be read", got=said, next_step="ask the site whether you may use cron")
    return done.stdout.decode("utf-8", "surrogateescape").splitlines() if not done.returncode else []


def _write(before: Sequence[str], after: Sequence[str]) -> bool:
    if list(before) == list(after):
        return False
    content = "".join(f"{line}\n" for line in after).encode("utf-8", "surrogateescape")
    done = subprocess.run([_program(), "-"], input=content, capture_output=True, timeout=_SECONDS, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise NoCrontab("the crontab cannot be written", got=said, next_step="ask the site whether you may use cron")
    return True
