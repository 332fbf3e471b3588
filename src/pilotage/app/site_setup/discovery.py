"""Discovers a cluster: its batch system, queues, Python, disks and network."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.sites.install import home_relative
from pilotage.agent.batch import Answer, BatchError, Call, Dialect, Limits, Queue, Unknown, dialects
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.sites.entry import SiteEntry
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.adapters.sites.commands import Caller

DAY_SECONDS = 86_400
PYTHON_MIN = (3, 8)
PYTHONS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
    "/usr/bin/python3",
    "/usr/libexec/platform-python",
)
PREFIX = "pilotage-look"
REACH_SECONDS = 5
LOGIN_SECONDS = 20
SHARED_VARIABLES = (
    "WORK",
    "WORKDIR",
    "WRKDIR",
    "CCCWORKDIR",
    "VSC_DATA",
    "SCRATCH",
    "SCRATCHDIR",
    "CCCSCRATCHDIR",
    "PSCRATCH",
    "VSC_SCRATCH",
)
"""Usual names of folders that all nodes share; first those from which nothing is deleted after some time."""
OWN_DISKS = frozenset({"btrfs", "ext2/ext3", "f2fs", "jfs", "overlayfs", "ramfs", "reiserfs", "tmpfs", "xfs", "zfs"})
"""Local file systems. A login node may still export its own to the nodes, which cannot be seen there."""
WORDS_MAX = 300
_NOT_FOUND = 127
_MARK = "pilotage-found:"

# Each line reports one thing; other output of a login shell is skipped.
_LOOK = """\
cd || exit
echo "{mark}home $(pwd)"
if ( umask 077; : > .pilotage-look.$$ ) 2>/dev/null; then rm -f .pilotage-look.$$; echo "{mark}writable yes"; fi
echo "{mark}kind $(stat -f -c %T . 2>/dev/null)"
echo "{mark}host $(hostname 2>/dev/null || uname -n)"
echo "{mark}user $(id -un 2>/dev/null)"
echo "{mark}platform $(uname -m)-$(uname -s | tr A-Z a-z)"
folder={folder}
if [ -n "$folder" ]; then
  there=yes writable=no
  [ -d "$folder" ] || there=no
  while ! [ -e "$folder" ]; do folder=$(dirname "$folder"); done
  if ( umask 077; : > "$folder/.pilotage-look.$$" ) 2>/dev/null; then rm -f "$folder/.pilotage-look.$$"; writable=yes; fi
  echo "{mark}folder $there $writable $(stat -f -c %T "$folder" 2>/dev/null)"
fi
for each in {pythons}; do
  told=$("$each" -I -S -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) && echo "{mark}python $each $told"
done
exit 0
"""
# Variables of a login shell, which may be of any kind and slow; `tcsh -l` takes no command.
_PATHS = """\
shell=${{SHELL:-/bin/sh}}
limit=$(command -v timeout) && limit="$limit {seconds}"
{{ $limit "$shell" -l -c env || $limit "$shell" -c env; }} </dev/null 2>/dev/null | while IFS= read -r line; do
  case $line in {cases}) ;; *) continue ;; esac
  path=${{line#*=}}
  [ -d "$path" ] || continue
  told=no
  if ( umask 077; : > "$path/.pilotage-look.$$" ) 2>/dev/null; then rm -f "$path/.pilotage-look.$$"; told=yes; fi
  printf '%s\\t%s\\t%s\\t%s\\n' "{mark}path ${{line%%=*}}" "$told" "$(stat -f -c %T "$path" 2>/dev/null)" "$path"
done
exit 0
"""
# With a Python that is known to exist: not every node has a program that fetches URLs.
_REACH = """\
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
try:
    socket.create_connection((host, port), {seconds}).close()
except OSError as error:
    print("no: %s" % (error.strerror or error))
else:
    print("yes")
"""


class DiscoveryFailed(PilotageError):
    """A site cannot be discovered: it cannot be reached, or has no known batch system."""


class FoundPython(msgspec.Struct, frozen=True, kw_only=True):
    """A Python that could start the agent."""

    word: str
    version: str

    @property
    def is_enough(self) -> bool:
        """Whether it is new enough."""
        return tuple(int(part) for part in self.version.split(".")[:2]) >= PYTHON_MIN


class FoundQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue or partition and one of its nodes; 0: unknown."""

    name: str
    is_default: bool
    wall_seconds: int
    cores: int
    memory_bytes: int
    nodes: int
    core_memory_bytes: int
    gpus: int


class FoundPath(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a variable names, which all nodes may share."""

    variable: str
    path: str
    writable: bool
    file_system: str


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The requested folder: whether it exists, and whether it, or its parent, can be written."""

    there: bool
    writable: bool
    file_system: str


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Everything discovered."""

    host: str
    user: str
    home: str
    writable: bool
    file_system: str
    paths: tuple[FoundPath, ...]
    platform: str
    kind: str
    version: str
    experimental: bool
    queues: tuple[FoundQueue, ...]
    array_max: int
    jobs_max: int
    pythons: tuple[FoundPython, ...]
    server: str  # the address that was tried; empty: there is no service
    way_out: str  # "yes", or why not; empty: it was not tried
    unknown: str = ""  # why limits are unknown
    folder: FoundFolder | None = None  # as requested


class RequestedValues(msgspec.Struct, frozen=True, kw_only=True):
    """Requested values, instead of discovered ones."""

    kind: str = ""
    setup: tuple[str, ...] = ()
    queue: str = ""
    account: str = ""
    python: str = ""
    folder: str = ""
    slots: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    pilots_max: int = 0
    wall_time_seconds: float = 0.0


def discover(
    caller: Caller,
    *,
    chosen: RequestedValues | None = None,
    commands: Callable[[Call], Answer] | None = None,
    server: str = "",
    why_not: str = "",
) -> Discovery:
    """Discover a cluster from its login node; raises `DiscoveryFailed`.

    `commands` runs those of the batch system, if they run differently from the rest. `why_not` says why the service
    cannot be reached from there, if that is known without trying.
    """
    chosen, commands = chosen or RequestedValues(), commands or caller.run
    words = " ".join(map(shlex.quote, dict.fromkeys([*filter(None, [chosen.python]), *PYTHONS])))
    try:
        folder = shlex.quote(home_relative(chosen.folder)) if chosen.folder else ""
        look = Call(("sh",), _LOOK.format(mark=_MARK, pythons=words, folder=folder))
        # Agents are started after the setup lines, and without any in the environment of the batch system.
        answer = commands(look) if chosen.setup else caller.run(look)
    except ValueError as error:
        raise DiscoveryFailed(str(error), subject="--folder") from error
    except Unknown as error:
        raise DiscoveryFailed(f"it cannot be reached: {error}", next_step="try ssh by hand, then again") from error
    facts = dict(_facts(answer))
    if "home" not in facts:
        output = " ".join(f"{answer.stderr} {answer.stdout}".split())[-500:]
        raise DiscoveryFailed("its shell does not answer properly", got=output or f"exit status {answer.exit_status}")
    pythons = tuple(_pythons(answer))
    dialect, version, limits, unknown = _scheduler(commands, chosen.kind)
    enough = next((each for each in pythons if each.is_enough), None)
    return Discovery(
        host=facts.get("host", ""),
        user=facts.get("user", ""),
        home=facts["home"],
        writable="writable" in facts,
        file_system=facts.get("kind", ""),
        paths=tuple(_paths(caller)),
        folder=_found_folder(facts.get("folder", "")),
        platform=facts.get("platform", ""),
        kind=dialect.name,
        version=version,
        experimental=dialect.experimental,
        queues=tuple(_queue(each) for each in limits.queues),
        array_max=limits.array_max,
        jobs_max=limits.jobs_max,
        pythons=pythons,
        server=server,
        way_out=why_not or (_way_out(caller, server, enough) if server and enough is not None else ""),
        unknown=unknown,
    )


def entry_from(name: str, address: str, found: Discovery, chosen: RequestedValues) -> SiteEntry:
    """The entry from discovered and requested values; raises `DiscoveryFailed`."""
    queue = _chosen_queue(found, chosen.queue)
    python = _chosen_python(found, chosen.python)
    slots = chosen.slots or 1
    memory_bytes = chosen.memory_bytes or (slots * queue.core_memory_bytes if queue is not None else 0)
    wall = chosen.wall_time_seconds or min(DAY_SECONDS, (queue.wall_seconds if queue is not None else 0) or DAY_SECONDS)
    reaches = found.way_out in ("", "yes")
    return SiteEntry(
        name=name,
        kind=found.kind,
        address=address,
        started_by="service" if reaches else "agent",
        queue=chosen.queue or (queue.name if queue is not None and not queue.is_default else ""),
        account=chosen.account,
        folder=chosen.folder or _folder(found),
        python=python,
        setup=chosen.setup,
        slots=slots,
        memory_bytes=memory_bytes or None,
        gpus=chosen.gpus,
        wall_time_seconds=float(wall),
        pilots_max=chosen.pilots_max or min(10, found.jobs_max or 10),
        platform=found.platform,
    )


def _chosen_python(found: Discovery, named: str) -> str:
    """The command that starts the agent: the requested one, or the first that is new enough. Raises `DiscoveryFailed`."""
    enough = [each.word for each in found.pythons if each.is_enough and named in ("", each.word)]
    if enough:
        return enough[0]
    versions = [f"{each.word} is {each.version}" for each in found.pythons if named in ("", each.word)]
    raise DiscoveryFailed(
        f"{named} cannot start the agent" if named else "there is no Python that could start the agent",
        subject="--python" if named else "",
        expected="Python 3.8 or later",
        got=", ".join(versions) or ("there is no such command" if named else "none at all"),
        next_step="name one with --python PATH, or what brings one with --setup 'module load …'",
    )


def _found_folder(fact: str) -> FoundFolder | None:
    there, _, rest = fact.partition(" ")
    writable, _, file_system = rest.partition(" ")
    return FoundFolder(there=there == "yes", writable=writable == "yes", file_system=file_system) if fact else None


def _facts(answer: Answer) -> Iterator[tuple[str, str]]:
    for line in answer.stdout.splitlines():
        if line.startswith(_MARK) and not line.startswith(f"{_MARK}python "):
            name, _, value = line[len(_MARK) :].partition(" ")
            yield name, value.strip()


def _pythons(answer: Answer) -> Iterator[FoundPython]:
    for line in answer.stdout.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == f"{_MARK}python" and words[2].replace(".", "").isdecimal():
            yield FoundPython(word=words[1], version=words[2])


def _paths(caller: Caller) -> Iterator[FoundPath]:
    """The folders that variables name, each once; none if that cannot be found out."""
    cases = "|".join(f"{name}=/*" for name in SHARED_VARIABLES)
    try:
        answer = caller.run(Call(("sh",), _PATHS.format(mark=_MARK, cases=cases, seconds=LOGIN_SECONDS)))
    except Unknown:
        return
    lines = (line.removeprefix(f"{_MARK}path ").split("\t", 3) for line in answer.stdout.splitlines())
    rows = [cells for cells in lines if len(cells) == 4 and cells[0] in SHARED_VARIABLES]
    named: set[str] = set()
    for variable, writable, file_system, path in sorted(rows, key=lambda cells: SHARED_VARIABLES.index(cells[0])):
        if path not in named:
            named.add(path)
            yield FoundPath(variable=variable, path=path, writable=writable == "yes", file_system=file_system)


def _folder(found: Discovery) -> str:
    """The folder for agents' files; empty: the home folder, unless another is more likely visible to nodes.

    In a folder of several users the name includes the user's. Raises `DiscoveryFailed` if no folder can be written.
    """
    writable = [each for each in found.paths if each.writable]
    shared = [each for each in writable if each.file_system not in OWN_DISKS]
    if found.writable and (found.file_system not in OWN_DISKS or not shared):
        return ""
    if not writable:
        raise DiscoveryFailed(
            "its home folder cannot be written",
            got=found.home,
            next_step="name a folder that all nodes share: --folder DIR",
        )
    name = ".pilotage-site" + (f"-{found.user}" if found.user else "")
    return f"{(shared or writable)[0].path.rstrip('/')}/{name}"


def _scheduler(run: Callable[[Call], Answer], kind: str) -> tuple[Dialect, str, Limits, str]:
    """The batch system, its version and limits, and why limits are unknown. Raises `DiscoveryFailed`.

    Of several, the first that answers, those covered by our tests first: commands of a former one may be left.
    """
    known = dialects()
    if kind and kind not in known:
        raise DiscoveryFailed("this kind of batch system is unknown", got=kind, next_step=did_you_mean(kind, known))
    tried = [known[kind](PREFIX)] if kind else sorted((each(PREFIX) for each in known.values()), key=_rank)
    failures: list[str] = []
    silent = False
    for dialect in tried:
        version = ""
        try:
            answer = run(dialect.is_here())
            version = dialect.version(answer)
            if version:
                dialect.listed(run(dialect.listing()))
                return dialect, version, *_limits(run, dialect)
        except BatchError as error:
            silent = silent or bool(version)
            failures.append(f"{dialect.name} {version}: {error}" if version else f"{dialect.name}: {error}")
        else:
            # Others are not expected to exist; a command that exists and fails may lack its environment.
            is_there = not dialect.experimental and answer.exit_status not in (None, 0, _NOT_FOUND)
            if kind or is_there:
                failures.append(f"{dialect.name}: {' '.join((answer.stderr or answer.stdout).split())[-WORDS_MAX:]}")
    if silent:
        raise DiscoveryFailed(
            "no batch system answers there",
            got="; ".join(failures),
            next_step="try its commands in a login shell there; load what they need with --setup 'module load …'",
        )
    raise DiscoveryFailed(
        "no batch system was found there",
        expected=", ".join(each.name for each in tried),
        got="; ".join(failures),
        next_step="check which commands a login shell has there; load what they need with --setup 'module load …'",
    )


def _rank(dialect: Dialect) -> tuple[bool, str]:
    return dialect.experimental, dialect.name


def _limits(run: Callable[[Call], Answer], dialect: Dialect) -> tuple[Limits, str]:
    try:
        return dialect.limited([run(call) for call in dialect.limits()]), ""
    except BatchError as error:
        return Limits(), str(error)


def _queue(queue: Queue) -> FoundQueue:
    return FoundQueue(**queue._asdict())


def _chosen_queue(found: Discovery, named: str) -> FoundQueue | None:
    if named:
        known = {each.name: each for each in found.queues}
        if known and named not in known:
            raise DiscoveryFailed("there is no such queue", got=named, next_step=did_you_mean(named, known))
        return known.get(named)
    return next((each for each in found.queues if each.is_default), found.queues[0] if found.queues else None)


def _way_out(caller: Caller, server: str, python: FoundPython) -> str:
    """Whether the login node reaches the address of the service."""
    from urllib.parse import urlsplit

    parts = urlsplit(server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    words = (python.word, "-I", "-S", "-c", _REACH.format(seconds=REACH_SECONDS), parts.hostname or "", str(port))
    try:
        answer = caller.run(Call(words))
    except Unknown as error:
        return f"no: {error}"
    lines = answer.stdout.strip().splitlines()
    return lines[-1] if lines else "no: nothing was answered"


# Compares the requested values with what was discovered: refuses what is impossible, and warns of what is unlikely.


def warnings_of(entry: SiteEntry, found: Discovery) -> tuple[str, ...]:
    """Warnings about the entry; raises `DiscoveryFailed` for values that its batch system would never start."""
    queue = _queue_of(entry, found)
    if queue is not None:
        _refuse_more_than(queue, entry, found)
    return (*_about_folder(entry, found), *_about_limits(entry, found, queue))


def _queue_of(entry: SiteEntry, found: Discovery) -> FoundQueue | None:
    if entry.queue:
        return next((each for each in found.queues if each.name == entry.queue), None)
    return next((each for each in found.queues if each.is_default), None)


def _refuse_more_than(queue: FoundQueue, entry: SiteEntry, found: Discovery) -> None:
    """Raise `DiscoveryFailed` if a pilot asks for more than any node of its queue has, or for more time."""
    wall_seconds = entry.wall_time_seconds or 0.0
    asked = (
        ("--slots", entry.slots, queue.cores, "cores on one node", str),
        ("--memory", entry.memory_bytes or 0, queue.memory_bytes, "of memory on one node", size_text),
        ("--gpus", entry.gpus, queue.gpus, "GPUs on one node", str),
        ("--wall-time", int(wall_seconds), queue.wall_seconds, "seconds for a job", str),
    )
    for option, wanted, most, what, say in asked:
        if most and wanted > most:
            others = [each.name for each in found.queues if _most(each, option) >= wanted or not _most(each, option)]
            raise DiscoveryFailed(
                f"the queue {queue.name!r} has {say(most)} {what}",
                subject=option,
                expected=f"at most {say(most)}",
                got=say(wanted),
                next_step=f"ask for less, or name another queue: --queue {others[0]}" if others else "ask for less",
            )


def _most(queue: FoundQueue, option: str) -> int:
    limits = {"--slots": queue.cores, "--memory": queue.memory_bytes, "--gpus": queue.gpus}
    return limits.get(option, queue.wall_seconds)


def _about_folder(entry: SiteEntry, found: Discovery) -> Iterator[str]:
    folder = found.folder
    if folder is None:
        return
    if not folder.writable:
        raise DiscoveryFailed(
            "this folder is not writable" if folder.there else "this folder does not exist, and cannot be created",
            subject="--folder",
            got=entry.folder,
            next_step="name a writable folder that all nodes share: --folder DIR",
        )
    if not folder.there:
        yield f"the folder {entry.folder} does not exist yet; it is created when first needed"
    if folder.file_system in OWN_DISKS:
        yield (
            f"the folder {entry.folder} is on {folder.file_system}, a disk of the login node only: nodes may not see it"
        )


def _about_limits(entry: SiteEntry, found: Discovery, queue: FoundQueue | None) -> Iterator[str]:
    if entry.gpus and queue is not None and not queue.gpus and any(each.gpus for each in found.queues):
        yield f"the queue {queue.name!r} reports no GPU, but a pilot asks for {entry.gpus}"
    if entry.pilots_max and found.jobs_max and entry.pilots_max > found.jobs_max:
        yield f"its batch system takes {found.jobs_max} jobs at most, fewer than {entry.pilots_max} pilots"
