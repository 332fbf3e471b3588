"""`pilotage site add` and `remove`: a site is looked at, and its entry written into sites.yaml or taken out of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.output import duration, emit, one_line, plural, say_to_reader, table, text_width
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.app.site_setup.discovery import Discovery, FoundPath
    from pilotage.app.site_setup.testing import Hop
    from pilotage.model.sites.entry import SiteEntry

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

QUEUES_SHOWN_MAX = 12
NOT_PROVED = "only a pilot shows that the nodes have this Python, see the folder and reach the service"


def sites_option(command: Decorated) -> Decorated:
    """`--sites`: which file."""
    help_text = "The file of sites; none: sites.yaml here, or in your settings."
    return click.option("--sites", metavar="FILE", help=help_text)(command)


@click.command("add")
@click.argument("name", metavar="NAME")
@click.argument("address", metavar="[ssh://USER@HOST]", required=False)
@click.option("--kind", default="", metavar="KIND", help="The batch system; none: what is found there.")
@click.option(
    "--setup", multiple=True, metavar="LINE",
    help="A line of shell before commands there and before the agent starts, such as 'module load slurm'; may be repeated.",
)  # fmt: skip
@click.option("--queue", default="", metavar="NAME", help="The queue or partition; none: the usual one there.")
@click.option("--account", default="", metavar="NAME", help="The account or project that is charged.")
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="Cores that a pilot asks for; none: 1.")
@click.option(
    "--memory", default="", metavar="SIZE",
    help="Memory that a pilot asks for, such as 4 GiB; none: its cores' share of what the queue tells.",
)  # fmt: skip
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Graphics processors that a pilot asks for.")
@click.option("--pilots", "pilots_max", type=click.IntRange(min=1), metavar="N", help="Pilots at once; none: 10.")
@click.option(
    "--wall-time", "wall_seconds", type=click.FloatRange(min=60), metavar="SECONDS",
    help="How long a pilot may last; none: what the queue gives, a day at most.",
)  # fmt: skip
@click.option(
    "--python", default="", metavar="WORD", help="What starts Python 3.8 or later there; none: what is found."
)
@click.option("--folder", default="", metavar="DIR", help="Where agents keep their files; none: what is found.")
@click.option("--dry-run", is_flag=True, help="Look, and say what would be written; write nothing.")
@sites_option
@json_option
def add(name: str, address: str | None, sites: str | None, *, dry_run: bool, as_json: bool, **asked: Any) -> int:
    """Look at a cluster, and write it into sites.yaml.

    With an address over ssh, which must let you in without a question; its commands are run in a login shell there.
    Without one the commands of the batch system are run here. The lines of --setup come before them. The scheduler,
    its queues and their limits, Python, the folders that nodes may share and the way to the service are looked at.
    What was found and what was chosen is shown, and refused where the one contradicts the other; change the entry as
    you like.
    """
    from pilotage.app.site_setup.editing import add_site

    made = add_site(name, address or "", named=sites or "", dry_run=dry_run, **asked)
    if as_json:
        from pilotage import app

        emit([app.json_text(made.plain())])
        return ExitCode.COMPLETE
    emit(_found_lines(name, made.found))
    emit(_chosen_lines(made.entry, made.found))
    for warning in made.warnings:
        say_to_reader(f"warning: {one_line(warning)}")
    emit([made.text if made.text.startswith("pilotage") else f"sites:\n{made.text}"] if dry_run else [])
    told = "would be written into" if dry_run else "written into"
    emit([f"{told} {made.file}\n"])
    if not dry_run:
        emit([f"try it: pilotage site test {name}\n", f"  {NOT_PROVED}\n"])
    return ExitCode.COMPLETE


@click.command("remove")
@click.argument("name", metavar="NAME")
@sites_option
@json_option
def remove(name: str, sites: str | None, *, as_json: bool) -> int:
    """Take a site out of sites.yaml.

    A service that runs gives it nothing more, and tells its pilots to leave when they have done what they have.
    """
    from pilotage.app.site_setup.editing import remove_site

    file = remove_site(name, named=sites or "")
    if as_json:
        from pilotage import app

        emit([app.json_text({"site": name, "file": str(file), "removed": True})])
    else:
        emit([f"{one_line(name)} is removed from {file}\n"])
    return ExitCode.COMPLETE


def _found_lines(name: str, found: Discovery) -> Iterator[str]:
    marked = " (experimental: never tried on a real one by our tests)" if found.experimental else ""
    yield f"{one_line(name)}: {one_line(found.host)}\n"
    python = ", ".join(f"{each.word} {each.version}" for each in found.pythons) or "none"
    home = f"{found.home} on {found.file_system or 'an unknown file system'}"
    way_out = f"{found.way_out}, from the login node" if found.way_out == "yes" else found.way_out
    way_out = way_out or ("not tried: no service runs here" if not found.server else "not tried: no Python")
    facts = [
        ("scheduler", f"{found.kind} {found.version}{marked}"),
        ("python", python),
        ("home", home if found.writable else f"{home}, which cannot be written"),
        *(("$" + each.variable, _path(each)) for each in found.paths),
        ("way out", f"{way_out} ({found.server})" if found.server else way_out),
        ("limits", f"not known: {found.unknown}" if found.unknown else _limits(found)),
    ]
    yield from table(facts, indent="  ")
    if found.queues:
        yield "  queues\n"
        rows = [
            (
                f"{each.name}{' (usual)' if each.is_default else ''}",
                f"{duration(each.wall_seconds)}" if each.wall_seconds else "no limit of time told",
                f"{each.cores} cores a node" if each.cores else "",
                f"{size_text(each.memory_bytes)} a node" if each.memory_bytes else "",
                f"{each.gpus} GPUs a node" if each.gpus else "",
                f"{each.nodes} nodes" if each.nodes else "",
            )
            for each in found.queues[:QUEUES_SHOWN_MAX]
        ]
        yield from table(rows, indent="    ")
        if len(found.queues) > QUEUES_SHOWN_MAX:
            yield f"    … and {len(found.queues) - QUEUES_SHOWN_MAX} more\n"


def _path(found: FoundPath) -> str:
    told = f"{found.path} on {found.file_system or 'an unknown file system'}"
    return told if found.writable else f"{told}, which cannot be written"


def _limits(found: Discovery) -> str:
    said = [
        f"{count:,} {what}"
        for count, what in ((found.array_max, "elements of an array"), (found.jobs_max, "jobs"))
        if count
    ]
    return ", ".join(said) or "none told"


def _chosen_lines(entry: SiteEntry, found: Discovery) -> Iterator[str]:
    from pilotage.model.sites.entry import pilots_max_of

    queue = entry.queue or next(
        (f"{each.name}, as is usual" for each in found.queues if each.is_default), "as is usual"
    )
    started = (
        "the service itself" if entry.started_by == "service" else "a site agent there: the service is not reached"
    )
    each = [plural(entry.slots, "slot"), size_text(entry.memory_bytes) if entry.memory_bytes else ""]
    each += [plural(entry.gpus, "GPU") if entry.gpus else "", duration(entry.wall_time_seconds or 0)]
    yield "chosen\n"
    facts = [
        ("queue", queue),
        ("pilots", f"at most {pilots_max_of(entry)}, of {', '.join(filter(None, each))} each"),
        *(("setup", line) for line in entry.setup),
        ("python", entry.python),
        ("folder", entry.folder or "~/.pilotage-site"),
        ("started by", started),
    ]
    yield from table(facts, indent="  ")


# `pilotage site test`: one real pilot through every hop, and the name of the one that fails.

WORDS_LINES_MAX = 20


@click.command("test")
@click.argument("name", metavar="NAME")
@click.option(
    "--timeout", "seconds_max", type=click.FloatRange(min=1), default=900.0, metavar="SECONDS", show_default=True,
    help="How long to wait in all: for the queue, above all.",
)  # fmt: skip
@sites_option
@json_option
def test(name: str, seconds_max: float, sites: str | None, *, as_json: bool) -> int:
    """Run one real pilot through every hop of a site, and name the one that fails.

    From the login node to an output that comes back: each hop has a line with its time. Where one fails, what the
    pilot itself wrote is shown. Where pilots live already, one more is started. A service is started where none runs here.
    """
    from pilotage.app.site_setup.editing import test_site
    from pilotage.app.site_setup.testing import HOPS

    width = max(map(text_width, HOPS.values()))

    def tell(hop: Hop) -> None:
        if as_json:
            return
        mark = "ok  " if hop.ok else "FAIL"
        told = f"  {one_line(hop.message)}" if hop.message else ""
        emit([f"{mark}  {HOPS[hop.hop]:{width}}  {hop.seconds:7.2f} s{told}\n"])
        if not hop.ok:
            emit(f"      | {one_line(line)}\n" for line in hop.stderr.splitlines()[-WORDS_LINES_MAX:])
            if hop.hint:
                emit([f"      → {one_line(hop.hint)}\n"])

    passed, hops = test_site(name, named=sites or "", seconds_max=seconds_max, tell=tell)
    if as_json:
        import msgspec

        from pilotage import app

        failed = next((each.hop for each in hops if not each.ok), None)
        told = {"site": name, "ok": passed, "failed": failed, "hops": [msgspec.to_builtins(each) for each in hops]}
        emit([app.json_text(told)])
    return ExitCode.COMPLETE if passed else ExitCode.FAILED


# `pilotage site agent`, `token` and `pack`: what runs in your account on a cluster, and what it needs.


@click.command("agent", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="--server URL --site NAME [--folder DIR] [...]")
@click.option(
    "--json", "as_json", is_flag=True, help="Say what would be started, as one JSON object, and start nothing."
)
def agent(words: tuple[str, ...], *, as_json: bool) -> int:
    """Run the agent of a site: on the cluster, in your own account.

    It submits and withdraws pilots as the service wants, and passes on what nodes without a way out have to say. It
    works in ~/.pilotage-site/NAME unless --folder names another folder that all nodes see. The
    same is in the one file that `pilotage site pack --output agent.pyz` writes, which needs nothing but Python 3.8:
    `python3 agent.pyz site --help` shows all options.
    """
    from pilotage.app.site_setup.editing import agent_command

    command = agent_command(words)
    if as_json:
        from pilotage import app

        emit([app.json_text({"command": command})])
        return ExitCode.COMPLETE
    sys.stdout.flush()
    sys.stderr.flush()
    return os.execv(command[0], command)


@click.command("token")
@click.argument("name", metavar="NAME")
@click.option("--output", required=True, metavar="FILE", help="The file to write it to; only you can read it.")
@json_option
def token(name: str, output: str, *, as_json: bool) -> int:
    """Write the token that the agent of a site shows to the service of this folder.

    Copy the file to the cluster, where nobody else can read it; the agent renews it by itself.
    """
    from pilotage.app.site_setup.editing import write_agent_token

    file = write_agent_token(name, Path(output))
    if as_json:
        from pilotage import app

        emit([app.json_text({"site": name, "token_file": str(file)})])
    else:
        emit([f"{file}: the token of the agent of {one_line(name)}\n"])
    return ExitCode.COMPLETE


@click.command("pack")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE.py]...")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the agent in one file there, too."
)
@json_option
def pack(files: tuple[Path, ...], output: Path | None, *, as_json: bool) -> int:
    """Put dialects of batch systems into the agent, beside our own.

    Each FILE has a class of Dialect: it is checked, kept in the state folder of this project, and known to the next
    service that starts here. Without a FILE the agent is only written to --output.
    """
    from pilotage.app.site_setup.editing import pack_here

    if not files and output is None:
        raise click.UsageError("What? Name files with dialects, or an --output for the agent.")
    packed = pack_here(files, output)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(packed))])
        return ExitCode.COMPLETE
    if packed.dialects:
        emit(
            [
                f"{plural(len(packed.dialects), 'dialect')} checked and kept in {packed.folder}: {', '.join(packed.dialects)}\n"
            ]
        )
    emit([f"{packed.archive}: the agent in one file\n"])
    return ExitCode.COMPLETE
