"""`pilotage site add`, `remove`, `test`, `agent`, `token` and `pack`: set up sites and their agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.output import duration, emit, one_line, plural, print_message, table, text_width
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.app.site_setup.discovery import Discovery, FoundPath
    from pilotage.app.site_setup.testing import Hop
    from pilotage.model.sites.entry import SiteEntry

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

QUEUES_SHOWN_MAX = 12
NOT_PROVED = "only a pilot proves that the nodes have this Python, see the folder and reach the service"


def sites_option(command: Decorated) -> Decorated:
    """`--sites`."""
    help_text = "Use the file of sites FILE; without it sites.yaml here, or in your settings."
    return click.option("--sites", metavar="FILE", help=help_text)(command)


@click.command("add")
@click.argument("name", metavar="NAME")
@click.argument("address", metavar="[ssh://USER@HOST]", required=False)
@click.option("--kind", default="", metavar="KIND", help="The batch system; without it, the one found there.")
@click.option(
    "--setup", multiple=True, metavar="LINE",
    help="Run this line of shell before commands there and before the agent, such as 'module load slurm'; may be repeated.",
)  # fmt: skip
@click.option("--queue", default="", metavar="NAME", help="The queue or partition; without it, the default one there.")
@click.option("--account", default="", metavar="NAME", help="The account or project to charge.")
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="Cores that a pilot requests; without it, 1.")
@click.option(
    "--memory", default="", metavar="SIZE",
    help="Memory that a pilot requests, such as 4 GiB; without it, its cores' share of a node of the queue.",
)  # fmt: skip
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs that a pilot requests.")
@click.option(
    "--pilots",
    "pilots_max",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run at most N pilots at once; without it, 10.",
)
@click.option(
    "--wall-time", "wall_seconds", type=click.FloatRange(min=60), metavar="SECONDS",
    help="The wall time that a pilot requests; without it, that of the queue, at most a day.",
)  # fmt: skip
@click.option(
    "--python", default="", metavar="WORD", help="The command of Python 3.8 or later there; without it, the one found."
)
@click.option(
    "--folder", default="", metavar="DIR", help="The folder for the files of agents; without it, one that is found."
)
@click.option("--dry-run", is_flag=True, help="Examine the site and show the entry; write nothing.")
@sites_option
@json_option
def add(name: str, address: str | None, sites: str | None, *, dry_run: bool, as_json: bool, **options: Any) -> int:
    """Examine a cluster and add it to sites.yaml.

    With an ssh ADDRESS, commands run in a login shell there; ssh must log in without asking. Without an address, the commands
    of the batch system run here. The lines of --setup run before them. `add` examines the scheduler, its queues and their
    limits, Python, folders that the nodes may share, and the way to the service. It shows what it found and what it chose,
    and rejects options that contradict it; you can edit the entry afterwards.
    """
    from pilotage.app.site_setup.editing import add_site

    made = add_site(name, address or "", named=sites or "", dry_run=dry_run, **options)
    if as_json:
        from pilotage import app

        emit([app.json_text(made.plain())])
        return ExitCode.COMPLETE
    emit(_found_lines(name, made.found))
    emit(_chosen_lines(made.entry, made.found))
    for warning in made.warnings:
        print_message(f"warning: {one_line(warning)}")
    emit([made.text if made.text.startswith("pilotage") else f"sites:\n{made.text}"] if dry_run else [])
    verb = "would be written into" if dry_run else "written into"
    emit([f"{verb} {made.file}\n"])
    if not dry_run:
        emit([f"test it: pilotage site test {name}\n", f"  {NOT_PROVED}\n"])
    return ExitCode.COMPLETE


@click.command("remove")
@click.argument("name", metavar="NAME")
@sites_option
@json_option
def remove(name: str, sites: str | None, *, as_json: bool) -> int:
    """Remove a site from sites.yaml.

    A running service sends no more work to it, and its pilots exit when their attempts have ended.
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
    marked = " (experimental: our tests have never run on a real one)" if found.experimental else ""
    yield f"{one_line(name)}: {one_line(found.host)}\n"
    python = ", ".join(f"{each.word} {each.version}" for each in found.pythons) or "none"
    home = f"{found.home} on {found.file_system or 'an unknown file system'}"
    way_out = f"{found.way_out}, from the login node" if found.way_out == "yes" else found.way_out
    way_out = way_out or ("not tested: no service runs here" if not found.server else "not tested: no Python")
    facts = [
        ("scheduler", f"{found.kind} {found.version}{marked}"),
        ("python", python),
        ("home", home if found.writable else f"{home}, not writable"),
        *(("$" + each.variable, _path(each)) for each in found.paths),
        ("way out", f"{way_out} ({found.server})" if found.server else way_out),
        ("limits", f"not known: {found.unknown}" if found.unknown else _limits(found)),
    ]
    yield from table(facts, indent="  ")
    if found.queues:
        yield "  queues\n"
        rows = [
            (
                f"{each.name}{' (default)' if each.is_default else ''}",
                f"{duration(each.wall_seconds)}" if each.wall_seconds else "no time limit reported",
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
    text = f"{found.path} on {found.file_system or 'an unknown file system'}"
    return text if found.writable else f"{text}, not writable"


def _limits(found: Discovery) -> str:
    limits = [
        f"{count:,} {what}"
        for count, what in ((found.array_max, "elements of an array"), (found.jobs_max, "jobs"))
        if count
    ]
    return ", ".join(limits) or "none reported"


def _chosen_lines(entry: SiteEntry, found: Discovery) -> Iterator[str]:
    from pilotage.model.sites.entry import pilots_max_of

    queue = entry.queue or next(
        (f"{each.name}, the default" for each in found.queues if each.is_default), "the default"
    )
    started = (
        "the service itself"
        if entry.started_by == "service"
        else "a site agent there: the nodes cannot reach the service"
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


# `pilotage site test`: sends one real pilot through every hop, and names the hop that fails.

WORDS_LINES_MAX = 20


@click.command("test")
@click.argument("name", metavar="NAME")
@click.option(
    "--timeout", "seconds_max", type=click.FloatRange(min=1), default=900.0, metavar="SECONDS", show_default=True,
    help="Wait at most this long in all; most of it is time in the queue.",
)  # fmt: skip
@sites_option
@json_option
def test(name: str, seconds_max: float, sites: str | None, *, as_json: bool) -> int:
    """Run one real pilot through every hop of a site, and name the one that fails.

    The hops go from the login node to an output that comes back; each has a line with its time. If one fails, the output of
    the pilot is shown. If pilots run already, one more is started. If no service runs here, one is started.
    """
    from pilotage.app.site_setup.editing import test_site
    from pilotage.app.site_setup.testing import HOPS

    width = max(map(text_width, HOPS.values()))

    def tell(hop: Hop) -> None:
        if as_json:
            return
        mark = "ok  " if hop.ok else "FAIL"
        message = f"  {one_line(hop.message)}" if hop.message else ""
        emit([f"{mark}  {HOPS[hop.hop]:{width}}  {hop.seconds:7.2f} s{message}\n"])
        if not hop.ok:
            emit(f"      | {one_line(line)}\n" for line in hop.stderr.splitlines()[-WORDS_LINES_MAX:])
            if hop.hint:
                emit([f"      → {one_line(hop.hint)}\n"])

    passed, hops = test_site(name, named=sites or "", seconds_max=seconds_max, tell=tell)
    if as_json:
        import msgspec

        from pilotage import app

        failed = next((each.hop for each in hops if not each.ok), None)
        report = {"site": name, "ok": passed, "failed": failed, "hops": [msgspec.to_builtins(each) for each in hops]}
        emit([app.json_text(report)])
    return ExitCode.COMPLETE if passed else ExitCode.FAILED


# `pilotage site agent`, `token` and `pack`: the agent that runs in your account on a cluster, and what it needs.


@click.command("agent", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="--server URL --site NAME [--folder DIR] [...]")
@click.option("--json", "as_json", is_flag=True, help="Print what would be started as one JSON object; start nothing.")
def agent(words: tuple[str, ...], *, as_json: bool) -> int:
    """Run the agent of a site: on the cluster, in your own account.

    The site agent submits and cancels pilots for the service, and relays the messages of nodes that cannot reach it. It works
    in ~/.pilotage-site/NAME, unless --folder names another folder that all nodes see. `pilotage site pack --output agent.pyz`
    writes the same agent as one file that needs only Python 3.8: `python3 agent.pyz site --help` shows all options.
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
@click.option("--output", required=True, metavar="FILE", help="Write it to FILE, which only you can read.")
@json_option
def token(name: str, output: str, *, as_json: bool) -> int:
    """Write the token with which the agent of a site logs in to the service of this folder.

    Copy the file to the cluster, readable only by you; the agent renews the token by itself.
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
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Also write the agent as one file, FILE."
)
@json_option
def pack(files: tuple[Path, ...], output: Path | None, *, as_json: bool) -> int:
    """Add dialects for further batch systems to the agent.

    Each FILE contains a subclass of Dialect. It is checked and stored in the state folder of this project, and the next
    service that starts here uses it. Without FILE, the agent is only written to --output.
    """
    from pilotage.app.site_setup.editing import pack_here

    if not files and output is None:
        raise click.UsageError("Name files with dialects, or an --output for the agent.")
    packed = pack_here(files, output)
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text(msgspec.to_builtins(packed))])
        return ExitCode.COMPLETE
    if packed.dialects:
        emit(
            [
                f"{plural(len(packed.dialects), 'dialect')} checked and stored in {packed.folder}: {', '.join(packed.dialects)}\n"
            ]
        )
    emit([f"{packed.archive}: the agent in one file\n"])
    return ExitCode.COMPLETE
