"""`pilotage files`: lists, explains, pins and purges the files in the caches of sites, and keeps files in the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.shared.options import WholeHelp
from pilotage.cli.shared.output import emit, one_line, plural, print_message, table
from pilotage.cli.shared.server import connect, connect_to_read, json_option, server_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.client import Server

_COLUMNS = ("SITE", "FILE", "BYTES", "STATE", "WISH", "PINNED", "LAST USED", "MESSAGE")
_DONE = {"pin": "pinned", "unpin": "unpinned", "purge": "purged"}
_FILES_AT_ONCE = 1000
_SHOWN_MAX = 20

_site_option = click.option("--site", metavar="NAME", help="Only files of the site NAME.")
_patterns_argument = click.argument("patterns", nargs=-1, required=True, metavar="FILE...")


@click.group(cls=WholeHelp)
def files() -> None:
    """Show the files that were brought to sites, and pin and purge them; keep files in the service.

    FILE is the locator of a file, its last part, or a shell pattern for one of them, such as 's3://data/*.root'.
    """


@files.command("put")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@json_option
@server_option
def put(paths: tuple[str, ...], server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """Send files of this computer to the service, which keeps them until you drop them.

    Prints the locator of each, store:SHA256, by which the inputs of your jobs can name it; only you can use it. A file that
    the service has already is not sent again, and what was interrupted goes on.
    """
    import msgspec

    from pilotage.app.jobs.kept_files import put_files

    with connect(server, token_file) as connection:
        done = put_files(connection, paths, report=lambda each: print_message(one_line(each.text)))
    if as_json:
        _emit_json({"files": [msgspec.to_builtins(each) for each in done]})
        return
    emit(f"{each.locator} {one_line(each.path)}\n" for each in done)


@files.command("kept")
@json_option
@server_option
def kept(server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """List the files that the service keeps for you: those that you put there, and outputs that your jobs stored there."""
    import msgspec

    from pilotage.app.jobs.kept_files import kept_files

    with connect_to_read(server, token_file) as connection:
        found = kept_files(connection)
    if as_json:
        _emit_json({"files": [msgspec.to_builtins(each) for each in found]})
        return
    if not found:
        emit(["the service keeps no files for you\n"])
    emit(table([(each.locator, f"{each.size_bytes:,}") for each in found], header=("FILE", "BYTES")))


@files.command("drop")
@click.argument("locators", nargs=-1, required=True, metavar="LOCATOR...")
@json_option
@server_option
def drop(locators: tuple[str, ...], server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Let files go that the service keeps for you; those that a job needs stay until it has them."""
    from pilotage.app.jobs.kept_files import drop_files

    with connect(server, token_file) as connection:
        lacking = drop_files(connection, locators)
    if as_json:
        _emit_json({"unmatched": lacking})
    else:
        emit(f"dropped: {each}\n" for each in locators if each not in lacking)
    for each in () if as_json else lacking:
        print_message(f"error: {each} is not kept for you\n  next: pilotage files kept")
    return ExitCode.BAD_INPUT if lacking else ExitCode.COMPLETE


@files.command("list")
@click.argument("pattern", required=False, default="", metavar="[FILE]")
@_site_option
@json_option
@server_option
def list_files(pattern: str, site: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> None:
    """List the files in the caches of sites: their size and state, how long they are kept, and when a job last used them."""
    with connect_to_read(server, token_file) as connection:
        found = sorted(_listed(connection, pattern, site), key=lambda each: (each["site"], each["locator"]))
    if as_json:
        _emit_json({"files": found})
        return
    if not found:
        emit(["no cached file matches\n" if pattern or site else "there are no cached files\n"])
    emit(table(map(_row, found), header=_COLUMNS))


@files.command("why")
@click.argument("pattern", metavar="FILE")
@_site_option
@json_option
@server_option
def why(pattern: str, site: str | None, server: str | None, token_file: str | None, *, as_json: bool) -> int:
    """Explain why files are kept: which jobs need them, whose wish keeps them, and when they may go."""
    from pilotage.client.server import path_of

    with connect_to_read(server, token_file) as connection:
        found = connection.get(path_of("files", "why"), _parameters(pattern=pattern, site=site))
    if as_json:
        _emit_json(found)
    elif found["files"]:
        emit(line for each in found["files"] for line in _reason_lines(each))
        if found["more"]:
            emit(["there are more such files: name fewer\n"])
    if not found["files"]:
        print_message(f"error: no cached file matches {pattern}\n  next: pilotage files list")
        return ExitCode.BAD_INPUT
    return ExitCode.COMPLETE


@files.command("pin")
@_patterns_argument
@_site_option
@json_option
@server_option
def pin(
    patterns: tuple[str, ...], site: str | None, server: str | None, token_file: str | None, *, as_json: bool
) -> int:
    """Keep files in the caches of sites until you unpin them, whatever the jobs wish."""
    with connect(server, token_file) as connection:
        return _change(connection, "pin", {"patterns": patterns, "site": site or ""}, as_json=as_json)


@files.command("unpin")
@_patterns_argument
@_site_option
@json_option
@server_option
def unpin(
    patterns: tuple[str, ...], site: str | None, server: str | None, token_file: str | None, *, as_json: bool
) -> int:
    """Remove your pins from files; as an operator of the service, those of everyone."""
    with connect(server, token_file) as connection:
        return _change(connection, "unpin", {"patterns": patterns, "site": site or ""}, as_json=as_json)


@files.command("purge")
@click.argument("patterns", nargs=-1, metavar="[FILE]...")
@click.option("--software", is_flag=True, help="Purge archives of software only; all of them, if no FILE is given.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@_site_option
@json_option
@server_option
def purge(
    patterns: tuple[str, ...],
    site: str | None,
    server: str | None,
    token_file: str | None,
    *,
    software: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove files from the caches of sites, also those that are to be retained.

    Files that a package which may still run needs, that are pinned, or that other users keep stay, and are named. Stores
    keep their files.
    """
    if not patterns and not software:
        raise click.UsageError("Which files? Name them ('*' for all), or use --software.")
    wanted = {"patterns": patterns, "site": site or "", "software": software, "dry_run": dry_run}
    with connect(server, token_file) as connection:
        return _change(connection, "purge", wanted, as_json=as_json)


def _listed(connection: Server, pattern: str, site: str | None) -> Iterator[dict[str, Any]]:
    from pilotage.client.server import path_of

    asked = _parameters(pattern=pattern, site=site) | {"limit": _FILES_AT_ONCE}
    cursor: str | None = None
    while True:
        page = connection.get(path_of("files"), asked if cursor is None else asked | {"cursor": cursor})
        yield from page["files"]
        cursor = page["next"]
        if cursor is None:
            return


def _parameters(*, pattern: str, site: str | None) -> dict[str, str | int | None]:
    asked: dict[str, str | int | None] = {"pattern": pattern} if pattern else {}
    return asked if site is None else asked | {"site": site}


def _row(file: dict[str, Any]) -> Sequence[object]:
    wish = f"{file['wish']}, stale" if file["stale"] else file["wish"]
    message = f"{file['reason']}: {file['message']}" if file["message"] else file["reason"]
    used = moment(file["used_at"]) if file["used_at"] else ""
    return (
        file["site"], file["locator"], f"{file['size_bytes']:,}", file["state"], wish, ", ".join(file["pins"]), used,
        message,
    )  # fmt: skip


def _reason_lines(reason: dict[str, Any]) -> Iterator[str]:
    file = reason["file"]
    yield f"{one_line(file['locator'])} at {one_line(file['site'])}: {file['state']}, {file['size_bytes']:,} bytes\n"
    for need in reason["needs"] or ():
        named = ", ".join(need["some"]) + (", …" if need["packages"] > len(need["some"]) else "")
        waiting = f"; {need['waiting']:,} wait for it" if need["waiting"] else ""
        words = f"needed by {plural(need['packages'], 'package')} of {need['job']} ({named})"
        yield f"  {one_line(words)}, which wishes {need['wish']}{waiting}\n"
    if reason["others"]:
        yield f"  needed by {plural(reason['others'], 'job')} that you may not read\n"
    for owner, wish in file["wishes"].items():
        yield f"  {one_line(owner)} wishes {wish}\n"
    if file["pins"]:
        yield f"  pinned by {one_line(', '.join(file['pins']))}\n"
    yield f"  {one_line(reason['message'])}\n"


def _change(connection: Server, deed: str, wanted: dict[str, Any], *, as_json: bool) -> int:
    from pilotage.client.server import path_of

    told = connection.post(path_of("files", deed), wanted)
    if as_json:
        _emit_json(told)
    else:
        emit(_change_lines(told))
    for each in () if as_json else told["kept_files"][:_SHOWN_MAX]:
        print_message(f"left alone: {each['locator']} at {each['site']}: {each['message']}")
    if not as_json and told["kept"] > _SHOWN_MAX:
        print_message(f"left alone: {told['kept'] - _SHOWN_MAX:,} more")
    for each in () if as_json else told["unmatched"]:
        print_message(f"error: no cached file matches {each}\n  next: pilotage files list")
    return ExitCode.BAD_INPUT if told["kept"] or told["unmatched"] else ExitCode.COMPLETE


def _change_lines(told: dict[str, Any]) -> Iterator[str]:
    word = _DONE[told["operation"]]
    for each in told["files"][:_SHOWN_MAX]:
        yield f"{'would be ' if told['dry_run'] else ''}{word}: {one_line(each['locator'])} at {one_line(each['site'])}\n"
    if told["changed"] > _SHOWN_MAX:
        yield f"… and {told['changed'] - _SHOWN_MAX:,} more\n"
    would = "would be " if told["dry_run"] else ""
    yield f"{plural(told['changed'], 'file')}, {told['changed_bytes']:,} bytes, {would}{word}\n"


def _emit_json(report: object) -> None:
    from pilotage import app

    emit([app.json_text(report)])
