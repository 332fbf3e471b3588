"""`pilotage clean`: what earlier runs made and the document no longer makes is shown, and then removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.options import chosen_format, document_argument, format_option, parameter_options
from pilotage.cli.output import emit, say_to_reader
from pilotage.cli.questions import is_interactive
from pilotage.cli.words import one_line, plural, table
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment, size_text

if TYPE_CHECKING:
    from pilotage.model.cleaning import ObsoleteFiles

KEPT_SHOWN_MAX = 20


@click.command()
@document_argument
@format_option
@parameter_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs; nobody is asked.")
def clean(
    file: str | None, source_format: str, *, parameters: dict[str, str], yes: bool, dry_run: bool, as_json: bool
) -> int:
    """Remove, after showing, what earlier runs made and the document no longer makes.

    FILE is a document; none: the one of the current folder. A file stays where somebody changed it, where a job that is not
    over makes or reads it, where the document reads it or may make it, and where another document does. Exit code 0: all
    was removed, or there was nothing; 1: something was not; 2: bad input, or nobody was there to be asked.
    """
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run exclude each other.")
    import_numpy_quickly()
    from pilotage.app.cleaning import obsolete_files, remove_obsolete
    from pilotage.app.running import document_source

    source = document_source(file, source_format=chosen_format(source_format), parameters=parameters)
    found = obsolete_files(source)
    if not as_json:
        emit(_shown(found))
    if not found.files or dry_run:
        return _end(found, as_json=as_json)
    if not yes:
        question = f"Remove {plural(len(found.files), 'file')} ({size_text(found.size_bytes)})?"
        if as_json or not is_interactive():
            say_to_reader(f"{question} Nobody is there to be asked: say --yes.")
            return _end(found, as_json=as_json, code=ExitCode.BAD_INPUT)
        if not click.confirm(question, err=True):
            say_to_reader("nothing was removed")
            return ExitCode.FAILED
    done = remove_obsolete(source, found)
    failed = len(done.removed) < len(found.files)
    if not as_json:
        emit(_outcome(found, done))
    return _end(done, as_json=as_json, code=ExitCode.FAILED if failed else ExitCode.COMPLETE)


def _end(found: ObsoleteFiles, *, as_json: bool, code: ExitCode = ExitCode.COMPLETE) -> ExitCode:
    if as_json:
        import msgspec

        from pilotage import app

        plain = {name: msgspec.to_builtins(getattr(found, name)) for name in found.__struct_fields__}
        emit([app.json_text({**plain, "size_bytes": found.size_bytes})])
    return code


def _shown(found: ObsoleteFiles) -> Iterator[str]:
    """What can be removed, and what stays and why, for people."""
    name = one_line(found.job)
    if not found.files:
        yield f"{name}: nothing to remove\n"
    else:
        count, size = plural(len(found.files), "file"), size_text(found.size_bytes)
        yield f"{name}: {count}, {size}, that earlier runs made and the document no longer makes\n"
        rows = ((each.name, size_text(each.size_bytes), moment(each.modified_at), each.job) for each in found.files)
        yield from table(rows, header=("file", "size", "made", "by"), indent="  ")
    if found.kept:
        yield "  kept\n"
        yield from table(((each.name, each.message) for each in found.kept[:KEPT_SHOWN_MAX]), indent="    ")
        if len(found.kept) > KEPT_SHOWN_MAX:
            yield f"    … and {len(found.kept) - KEPT_SHOWN_MAX:,} more, which --json names\n"
    if found.maybe_made:
        one = found.maybe_made == 1
        yield (
            f"  {plural(found.maybe_made, 'file')} that earlier runs made {'stays' if one else 'stay'}, since the document may"
            f" make {'it' if one else 'them'}: not all names of its outputs are known before\n"
        )


def _outcome(found: ObsoleteFiles, done: ObsoleteFiles) -> Iterator[str]:
    """What was removed, and what was not."""
    removed = {*done.removed}
    size_bytes = sum(each.size_bytes for each in found.files if each.name in removed)
    folders = f"; {plural(len(done.folders), 'folder')} left empty, too: {', '.join(map(one_line, done.folders))}"
    yield f"removed {plural(len(removed), 'file')}, {size_text(size_bytes)}{folders if done.folders else ''}\n"
    messages = {each.name: each.message for each in done.kept} | {each.name: each.message for each in done.not_removed}
    for each in found.files:
        if each.name not in removed:
            why = messages.get(each.name, "it is not what it was when it was shown")
            say_to_reader(f"not removed: {one_line(each.name)}: {why}")
