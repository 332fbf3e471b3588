"""`agent.pyz site …`: the site agent's command line, with its relay, its lock and its line in the crontab."""

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
"""How long a site agent may take to leave, and how often its successor checks."""
LOG_FILE = "site-agent.log"
HOME_FOLDER = ".pilotage-site"
_SITE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,59}")
_ANYWHERE = ("", "0.0.0.0", "::")  # the nodes of the cluster must reach it


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the site agent."""
    parser.add_argument("--server", required=True, metavar="ADDRESS", help="https://HOST:PORT or unix:PATH")
    parser.add_argument("--site", required=True, metavar="NAME", help="name of the site")
    parser.add_argument(
        "--folder", default="", metavar="DIR",
        help=f"folder to work in, on a disk that all nodes share; default: ~/{HOME_FOLDER}/NAME of the site",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", default="auto", metavar="NAME",
        help="the only batch system to use; auto: the one that the entry of the site names",
    )  # fmt: skip
    parser.add_argument("--token-file", default="", metavar="FILE", help="file with the token to authenticate with")
    parser.add_argument("--ca-file", default="", metavar="FILE", help="the only CA certificate to trust")
    parser.add_argument(
        "--listen", default="", metavar="HOST:PORT", help="relay for nodes that reach only this computer"
    )
    parser.add_argument("--spool", action="store_true", help="relay for nodes that share only the folder")
    parser.add_argument(
        "--settle", type=float, default=30.0, metavar="SECONDS", help="until submissions of an earlier agent are listed"
    )
    parser.add_argument(
        "--deserted", type=float, default=0.0, metavar="SECONDS", help="end after this time without service; 0: never"
    )
    parser.add_argument("--started-as", default="", metavar="MARK", help="how the service identifies this start")
    parser.add_argument("--unless-running", action="store_true", help="end silently if it runs already")
    cron = parser.add_mutually_exclusive_group()
    cron.add_argument(
        "--install-cron", action="store_true",
        help="let cron start it at boot, and again after a crash; then end",
    )  # fmt: skip
    cron.add_argument("--uninstall-cron", action="store_true", help="remove it from the crontab; then end")


def main(chosen: argparse.Namespace) -> int:
    """Run the site agent and return its exit status."""
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
    """The folder of a site agent: the given one, else a folder of the site below the user's home.

    Home folders of clusters are on a disk that the nodes share. Each site has a folder of its own, which one agent
    uses. Raises `ValueError` for an invalid site name.
    """
    if not named and not _SITE.fullmatch(site):
        raise ValueError(f"--site is not a valid site name, so that its folder cannot be named: {site!r}")
    return Path(os.path.abspath(os.path.expanduser(named or f"~/{HOME_FOLDER}/{site}")))


def _cron(chosen: argparse.Namespace, folder: Path) -> int:
    if chosen.uninstall_cron:
        state = "removed from" if uninstall(folder) else "not in"
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        changed = install(_command(chosen, folder), folder, log=folder / LOG_FILE)
        state = "added to" if changed else "already in"
    sys.stdout.write(f"the site agent of {chosen.site} is {state} your crontab\n")
    return 0


def _command(chosen: argparse.Namespace, folder: Path) -> list[str]:
    words = [sys.executable, "-I", "-S", str(_own_file()), "site", f"--server={chosen.server}", f"--site={chosen.site}"]
    words += [f"--folder={folder}", f"--scheduler={chosen.scheduler}"]
    for option, value in (("token-file", chosen.token_file), ("ca-file", chosen.ca_file)):
        words += [f"--{option}={os.path.abspath(value)}"] if value else []
    words += [f"--listen={chosen.listen}"] if chosen.listen else []
    return [*words, *(["--spool"] if chosen.spool else []), "--unless-running"]


def _own_file() -> Path:
    """Our own archive; raises `OSError` if we run from elsewhere: nodes could start no agent then."""
    file = Path(os.path.abspath(sys.argv[0]))
    if not file.is_file() or file.suffix != ".pyz":
        raise OSError(f"{file} is not the agent in one file: start agent-VERSION.pyz, which `pilotage` makes")
    return file


def _work(chosen: argparse.Namespace, folder: Path) -> int:
    from pilotage.agent.link.connect import Credentials, connect
    from pilotage.agent.link.download import Downloads
    from pilotage.agent.pilot.pilot import say
    from pilotage.agent.site.agent import SiteAgent, SiteAgentSettings
    from pilotage.agent.site.relay import Relays
    from pilotage.agent.site.state_folder import MEMORY_FILE, FolderLock, SiteFolder, SiteRecords

    version = str(getattr(sys.modules.get("pilotage"), "__version__", "unknown"))
    place = SiteFolder(folder, site=chosen.site, version=version, token_file=chosen.token_file, ca_file=chosen.ca_file)
    place.make()
    asked: list[SiteAgent] = []

    def lost() -> None:
        for each in asked:
            each.ask_to_leave("another agent has taken over this folder")

    lock = FolderLock(folder, lost=lost)
    _take(lock, patience_seconds=LEAVES_SECONDS if chosen.started_as else 0.0)
    try:
        memory = SiteRecords(folder / MEMORY_FILE)
        place.install(_own_file())
        relaying = Relays(chosen.server, ca_file=chosen.ca_file, say=say)
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
            open_transfer=Downloads(chosen.server, token=credentials, ca_file=chosen.ca_file).open,
        )
        asked.append(agent)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: agent.ask_to_leave(signal.Signals(number).name))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it goes on when its terminal closes
        say(f"the site agent of {chosen.site} runs; pilots connect to {place.server}")
        why = agent.run()
        relaying.stop()
        say(f"the site agent of {chosen.site} ends: {why}; its pilots go on")
    finally:
        lock.release()
    return 0


def _take(lock: FolderLock, *, patience_seconds: float) -> None:
    """Take the lock of the folder; raises `AlreadyRuns`, after some patience if its holder was told to leave."""
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
    """Start the requested relays, and set the address that pilots connect to."""
    from pilotage.agent.site.relay import Relays, bound

    assert isinstance(relaying, Relays)
    listener = None
    place.server = chosen.server
    # Nodes cannot use a Unix socket of this computer.
    spool = chosen.spool or (chosen.server.startswith("unix:") and not chosen.listen)
    if spool:
        place.server = f"spool:{place.relay_folder}"
    if chosen.listen:
        host, _, port = chosen.listen.rpartition(":")
        if not port.isdigit():
            raise ValueError(f"--listen takes HOST:PORT, not {chosen.listen!r}")
        host = host.strip("[]")
        # Running pilots know the previous port.
        listener = _bound_again(host, int(port), memory.port) if not int(port) else bound(host, int(port))
        memory.port = listener.getsockname()[1]
        memory.save()
        name = os.uname().nodename if host in _ANYWHERE else host
        place.server = f"http://[{name}]:{memory.port}" if ":" in name else f"http://{name}:{memory.port}"
    if listener is not None or spool:
        relaying.start(listener=listener, folder=place.relay_folder if spool else None)


def _bound_again(host: str, port: int, before: int) -> socket.socket:
    from pilotage.agent.site.relay import bound

    if before:
        try:
            return bound(host, before)
        except OSError:
            pass  # another program has the port now
    return bound(host, port)


# Two lines in the user's crontab start the site agent at boot and after a crash.
#
# Both use a login shell: cron's own environment has almost nothing, and the commands of the batch system would not be
# found.

TIMES = ("@reboot", "*/5 * * * *")
"""When cron starts it; a second one ends at once."""
_NONE_YET = "no crontab for"
_SECONDS = 30


class NoCrontab(AgentError):
    """The crontab is missing or may not be used; the message says what to do instead."""


def mark_of(folder: Path) -> str:
    """The comment at the end of a site agent's lines, to find them again."""
    return f"# pilotage site agent {folder}"


def lines_for(command: Sequence[str], folder: Path, *, log: Path) -> list[str]:
    """The crontab lines: the command in a login shell, with its output in a file and that of the profile discarded."""
    shell = shutil.which("bash") or "/bin/sh"
    script = f'exec "$@" >>{shlex.quote(str(log))} 2>&1'
    words = f"{shlex.join([shell, '-l', '-c', script, shell, *command])} >/dev/null 2>&1"
    if any(char in words + str(folder) for char in "\n\r"):
        raise NoCrontab("a crontab line cannot contain a name with line breaks", subject=str(folder))
    # A % ends the command in a crontab, unless it is escaped.
    return [f"{when} {words} {mark_of(folder)}".replace("%", "\\%") for when in TIMES]


def install(command: Sequence[str], folder: Path, *, log: Path) -> bool:
    """Put the lines into the crontab, in place of older ones; returns whether it changed."""
    before = _read()
    after = [*_others(before, folder), *lines_for(command, folder, log=log)]
    return _write(before, after)


def uninstall(folder: Path) -> bool:
    """Remove the lines; returns whether there were any."""
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
            next_step="start the agent by hand after each reboot, or use what the site offers instead",
        )
    return program


def _read() -> list[str]:
    done = subprocess.run(
        [_program(), "-l"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
    )
    errors = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and _NONE_YET not in errors:
        raise NoCrontab("cannot read the crontab", got=errors, next_step="ask the site whether you may use cron")
    return done.stdout.decode("utf-8", "surrogateescape").splitlines() if not done.returncode else []


def _write(before: Sequence[str], after: Sequence[str]) -> bool:
    if list(before) == list(after):
        return False
    content = "".join(f"{line}\n" for line in after).encode("utf-8", "surrogateescape")
    done = subprocess.run([_program(), "-"], input=content, capture_output=True, timeout=_SECONDS, check=False)
    if done.returncode:
        errors = done.stderr.decode("utf-8", "replace").strip()
        raise NoCrontab("cannot write the crontab", got=errors, next_step="ask the site whether you may use cron")
    return True
