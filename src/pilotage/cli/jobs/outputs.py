"""`pilotage outputs` and `clean`: verify and hand over outputs, and remove files that no document makes any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilotage.cli.documents.init import is_interactive
from pilotage.cli.shared.job_names import find_to_show
from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import chosen_format, document_argument, format_option, parameter_options
from pilotage.cli.shared.output import emit, one_line, plural, print_message, table
from pilotage.cli.shared.progress import stale_lines
from pilotage.cli.shared.server import JobOrPackage, connect_to_read, json_option, server_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment, size_text

if TYPE_CHECKING:
    from pilotage.app.jobs.elsewhere import Transferred
    from pilotage.app.jobs.results import HandedFile
    from pilotage.client.jobs import Jobs
    from pilotage.model.answers import ObsoleteFiles, PackageOutput, Progress, PublishedFile

    Hand = Callable[[Iterable[tuple[str, PublishedFile]]], Iterator[HandedFile]]

PROBLEMS_SHOWN_MAX = 20
LOGS = ("standard_output", "standard_error", "application_output", "application_error")


@click.command()
@click.argument("place", metavar="JOB|PACKAGE")
@click.option(
    "--to", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Also copy the files into DIR."
)
@click.option("--replace", is_flag=True, help="With --to, replace other files that have the same names.")
@json_option
@server_option
def outputs(
    place: str, to: Path | None, server: str | None, token_file: str | None, *, replace: bool, as_json: bool
) -> int:
    """Verify the outputs of a job or a package, and hand them over.

    Every file is compared with its checksum in the book. If all files of a finished job are intact, the book records that you
    took them over, and the job is CLEARED. Failed and cancelled packages are counted, since their files are missing. For a
    PACKAGE, its exit code, its message and how to see its logs are shown, too. JOB is an id, or a name for the newest job of
    that name.

    With --to, files that are not on this computer are received from the service. An interrupted call goes on when it is
    called again, and receives no file twice.
    """
    from pilotage.app.jobs.elsewhere import Receiver
    from pilotage.app.jobs.results import hand_over
    from pilotage.client.jobs import Jobs

    if replace and to is None:
        raise click.UsageError("--replace needs --to DIR.")

    with connect_to_read(server, token_file) as connection:
        where = find_to_show(connection, place)
        jobs = Jobs(connection)
        resting = connection.resting
        receive = None if resting else Receiver(connection, where.job, report=_report)
        hand = partial(hand_over, to=to, replace=replace, receive=receive)
        if where.package is None:
            return _job(jobs, where.job, to, hand, as_json=as_json, resting=resting)
        return _package(jobs, where, where.package, hand, as_json=as_json, resting=resting)


def _report(progress: Transferred) -> None:
    print_message(one_line(progress.text))


def _job(jobs: Jobs, job: str, to: Path | None, hand: Hand, *, as_json: bool, resting: bool) -> int:
    from pilotage.model.states import FINAL_NAMES

    # Counted first, so that it is not newer than the files below.
    found = jobs.job(job)
    over = found["state"] in FINAL_NAMES
    lost = {"failed": found["counts"]["aborted"], "cancelled": found["counts"]["cancelled"]}
    next_step = f"pilotage status {one_line(job)}" if any(lost.values()) else ""
    count = size_bytes = 0
    problems: list[HandedFile] = []
    listed: list[dict[str, Any]] = []
    for taken in hand(jobs.outputs(job)):
        count += 1
        size_bytes += taken.file.size_bytes
        if taken.problem:
            problems.append(taken)
        if as_json:
            listed.append(_json_of(taken))
    progress = _progress(jobs, job)
    cleared = over and not problems
    if cleared:
        jobs.clear(job)
    if as_json:
        from pilotage import app

        report = {"job": job, "files": listed, "problems": len(problems), "cleared": cleared}
        report |= {"stale": [each.package for each in progress.stale_results]} if progress and progress.stale else {}
        emit([app.json_text(report | lost | {"next_step": next_step})])
    else:
        _tell_job(job, count, size_bytes, to, problems)
        if next_step:
            print_message(f"{_lost(**lost)}, so outputs are missing; see why with: {next_step}")
        if progress is not None:
            for line in stale_lines(progress):
                print_message(line.rstrip("\n"))
        if problems:
            print_message(_next_step(progress, job, problems))
        elif cleared:
            print_message("the outputs are handed over: the job is CLEARED")
        elif resting:
            print_message(
                f"the job has not ended, and no service runs it; continue it with: pilotage attach {one_line(job)}"
            )
        else:
            print_message("the job has not ended yet: run this again when it has")
    return ExitCode.FAILED if problems or next_step else ExitCode.COMPLETE


def _lost(*, failed: int, cancelled: int) -> str:
    """The numbers of failed and cancelled packages in words; at least one is not 0."""
    if not failed:
        return f"{plural(cancelled, 'package')} cancelled"
    return f"{plural(failed, 'package')} failed" + (f", {cancelled:,} cancelled" if cancelled else "")


def _tell_job(job: str, count: int, size_bytes: int, to: Path | None, problems: list[HandedFile]) -> None:
    for taken in problems[:PROBLEMS_SHOWN_MAX]:
        print_message(f"{one_line(taken.path)}: {taken.problem}")
    if len(problems) > PROBLEMS_SHOWN_MAX:
        print_message(f"and {plural(len(problems) - PROBLEMS_SHOWN_MAX, 'other file')}")
    there = f" in {one_line(to)}" if to is not None else ""
    well = count - len(problems)
    emit([f"{one_line(job)}: {plural(well, 'file')} verified of {count:,}, {size_text(size_bytes)}{there}\n"])


def _progress(jobs: Jobs, job: str) -> Progress | None:
    """The progress of a job; None if its service runs no jobs."""
    from pilotage.client import ServerRefused

    try:
        return jobs.progress(job)
    except ServerRefused:
        return None


def _next_step(progress: Progress | None, job: str, problems: list[HandedFile]) -> str:
    """The next step for the first file that is missing or damaged."""
    first = next((each for each in problems if each.kind != "in-the-way"), problems[0])
    if first.kind == "not-here":
        return f"fetch the files with: pilotage outputs {one_line(job)} --to DIR"
    if first.kind == "in-the-way":
        return f"move {one_line(first.path)} away, or name another folder, or replace it with --replace; then run this again"
    if progress is not None and progress.unpublished and progress.next_step:
        return f"the outputs are not published yet: {one_line(progress.next_step)}"
    away = f"move {one_line(first.path)} away, then make it again" if first.kind == "changed" else "make it again"
    return f"{away}: pilotage retry --force {one_line(job)}/{first.file.package}"


def _package(jobs: Jobs, where: JobOrPackage, package: str, hand: Hand, *, as_json: bool, resting: bool) -> int:
    import msgspec

    from pilotage.model.answers import PublishedFile

    output = jobs.output(where.job, package)
    files = (
        (output.folder, PublishedFile(name=each.name, size_bytes=each.size_bytes, sha256=each.sha256, package=package))
        for each in output.outputs
    )
    taken = list(hand(files))
    progress = _progress(jobs, where.job)
    stale = [each for each in progress.stale_results if each.package == package] if progress is not None else []
    if as_json:
        from pilotage import app

        report = {**msgspec.to_builtins(output), "outputs": [_json_of(each) for each in taken]}
        report |= {"stale": True} if stale else {}
        for name in (
            LOGS if resting else ()
        ):  # without a service their URLs lead nowhere; `pilotage logs` shows the logs
            (report[name] or {}).pop("url", None)
        emit([app.json_text(report)])
    else:
        emit(_package_lines(where, output, taken))
        for each in stale:
            print_message(f"stale: it read {one_line(', '.join(each.files))}, made again since with other contents")
            print_message(f"run it again with: pilotage retry --force {one_line(where)}")
    return ExitCode.FAILED if any(each.problem for each in taken) else ExitCode.COMPLETE


def _json_of(taken: HandedFile) -> dict[str, Any]:
    file = taken.file
    entry = {"name": file.name, "path": taken.path, "size_bytes": file.size_bytes, "sha256": file.sha256}
    return entry | {"package": file.package} | ({"problem": taken.problem} if taken.problem else {})


def _package_lines(where: JobOrPackage, output: PackageOutput, taken: list[HandedFile]) -> Iterator[str]:
    yield f"{one_line(where)}: {one_line(output.state)}\n"
    message = (output.exit_message or "").strip().split("\n", 1)[0]
    facts = [
        ("exit", output.exit_code),
        ("message", message),
        ("stdout", f"pilotage logs {where} --stdout" if output.standard_output else None),
        ("stderr", f"pilotage logs {where} --stderr" if output.standard_error else None),
    ]
    yield from table([fact for fact in facts if fact[1]], indent="  ")
    if taken:
        yield "  outputs\n"
        rows = [(each.path, each.file.size_bytes, each.problem or each.file.sha256) for each in taken]
        yield from table(rows, indent="    ")


# `pilotage clean`: shows files that earlier runs made and the document no longer makes, then removes them.

KEPT_SHOWN_MAX = 20


@click.command()
@document_argument
@format_option
@parameter_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show which files would be removed, and remove none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs; never ask.")
def clean(
    file: str | None, source_format: str, *, parameters: dict[str, str], yes: bool, dry_run: bool, as_json: bool
) -> int:
    """Remove files that earlier runs made and the document no longer makes.

    FILE is a document; without it, the document of the current folder. A file stays if it was changed since, if an unfinished
    job makes or reads it, or if this or another document reads it or may make it. Exit code 0: all files were removed, or
    there were none; 1: some were not removed; 2: bad input, or there was no terminal to ask on.
    """
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run exclude each other.")
    import_numpy_quickly()
    from pilotage.app.clean import obsolete_files, remove_obsolete
    from pilotage.app.jobs.submit import document_source

    source = document_source(file, source_format=chosen_format(source_format), parameters=parameters)
    found = obsolete_files(source)
    if not as_json:
        emit(_shown(found))
    if not found.files or dry_run:
        return _end(found, as_json=as_json)
    if not yes:
        question = f"Remove {plural(len(found.files), 'file')} ({size_text(found.size_bytes)})?"
        if as_json or not is_interactive():
            print_message(f"{question} There is no terminal to ask on: use --yes.")
            return _end(found, as_json=as_json, code=ExitCode.BAD_INPUT)
        if not click.confirm(question, err=True):
            print_message("nothing was removed")
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
    """A table of the files that can be removed, and of those that stay, with the reason."""
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
            yield f"    … and {len(found.kept) - KEPT_SHOWN_MAX:,} more; --json lists all\n"
    if found.maybe_made:
        one = found.maybe_made == 1
        yield (
            f"  {plural(found.maybe_made, 'file')} that earlier runs made {'stays' if one else 'stay'}, since the document may"
            f" make {'it' if one else 'them'}: some of its output names are known only when it runs\n"
        )


def _outcome(found: ObsoleteFiles, done: ObsoleteFiles) -> Iterator[str]:
    """Lines that tell what was removed, and messages for what was not."""
    removed = {*done.removed}
    size_bytes = sum(each.size_bytes for each in found.files if each.name in removed)
    folders = f"; also {plural(len(done.folders), 'folder')} left empty: {', '.join(map(one_line, done.folders))}"
    yield f"removed {plural(len(removed), 'file')}, {size_text(size_bytes)}{folders if done.folders else ''}\n"
    messages = {each.name: each.message for each in done.kept} | {each.name: each.message for each in done.not_removed}
    for each in found.files:
        if each.name not in removed:
            why = messages.get(each.name, "it changed after it was listed")
            print_message(f"not removed: {one_line(each.name)}: {why}")
