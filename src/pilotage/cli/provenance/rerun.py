"""`pilotage provenance rerun`: run a recorded job again, and compare what comes out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.provenance.record_sources import recorded_jobs, records_options
from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.output import emit, one_line, plural
from pilotage.cli.shared.server import connect_to_read, json_option
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.jobs.watch import JobWatcher
    from pilotage.app.provenance.expected_environment import ExpectedEnvironment
    from pilotage.app.provenance.recorded_jobs import RecordedJobs
    from pilotage.app.provenance.rerun import Difference, InputChecked, OutputCompared, Rebuilt, RerunReport
    from pilotage.model.records import RecordNode

log = logging.getLogger(__name__)

SHOWN_MAX = 20
SITES_FILE = "sites.yaml"
_NOT_REPORTED = "not reported (unset, or not asked for by [provenance] variables)"
_REPLACE = "--replace"  # an option of `pilotage run`: a new run replaces nothing


@click.command()
@click.argument("job")
@click.option(
    "--package", metavar="P", default="", help="Run only this package, by its number, such as 1.2.1, or name."
)
@click.option("--here", is_flag=True, help="Run on this computer, whatever the document says.")
@click.option("--site", metavar="S", default="", help="Run at this site, whatever the document says.")
@click.option(
    "--in",
    "place",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Run in FOLDER, which may have inputs already; without it, in rerun-JOB.",
)
@click.option(
    "--inputs",
    "inputs_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Take inputs that the record does not have from FOLDER, such as `files` of a crate.",
)
@click.option("--anyway", is_flag=True, help="Run even if inputs are missing or changed.")
@click.option("--slots", type=click.IntRange(0, 100_000), metavar="N", help="Run N packages at once here.")
@click.option("--sites", metavar="FILE", default="", help="Read the sites from FILE; without it sites.yaml here.")
@json_option
@records_options
def rerun(
    job: str,
    package: str,
    site: str,
    place: Path | None,
    inputs_folder: Path | None,
    slots: int | None,
    sites: str,
    folder: Path | None,
    server: str | None,
    token_file: str | None,
    *,
    here: bool,
    anyway: bool,
    as_json: bool,
) -> int:
    """Run a recorded job again from its record, and compare its outputs.

    The definition, programs, scripts and small inputs come from the record. Other inputs must be in one of the folders
    named, or where the job ran, with the same checksums. Each output is identical, equal as `compare:` of the document declares, different, missing
    or new. Exit code 0: all are identical or equal; 1: not all; 2: bad input; 3: stopped.
    """
    from pilotage.app.jobs.submit import RunSettings, Source
    from pilotage.app.provenance.expected_environment import (
        LOCAL,
        expected_environment,
        known_site_names,
        pass_on_variables,
    )
    from pilotage.app.provenance.rerun import RERUN_OF, FolderInUse, rebuild, rerun_folder
    from pilotage.app.state_folder import settings_here
    from pilotage.cli.shared.job_run import run_job
    from pilotage.client import ServerRefused

    if here and site:
        raise click.UsageError("--here and --site name two places: give one of them.")
    if site:
        _refuse_unknown(site, sites)
    import_numpy_quickly()
    pass_on_variables(settings_here().provenance.variables)
    with recorded_jobs(folder, server, token_file) as recorded:
        history = recorded.opened(recorded.find(job))
        expected = expected_environment(
            history.record,
            executor=LOCAL if here else site,
            known_sites=known_site_names(_sites(sites)),
            site_nodes=lambda names: _nodes_at(server, token_file, names),
        )
        target = place.absolute() if place is not None else rerun_folder(history.job.id, package)
        rebuilt = rebuild(
            history,
            recorded.records,
            folder=target,
            package=package,
            executor=LOCAL if here else site,
            inputs_folder=inputs_folder.absolute() if inputs_folder is not None else None,
            anyway=anyway,
            expected=expected,
        )
        if not as_json:
            emit(_before_lines(rebuilt))
        found: list[RerunReport] = []
        how = RunSettings(fresh=True, slots=slots, sites=_sites(sites), annotations={RERUN_OF: history.job.id})
        try:
            code = run_job(
                Source(folder=rebuilt.folder, document=rebuilt.document, load=rebuilt.load),
                how,
                before_load=lambda: None,
                detach=False,
                as_json=as_json,
                at_end=lambda following: found.append(_report(following, rebuilt, recorded)),
                summarize=(lambda _progress, _code: None) if as_json else None,
            )
        except ServerRefused as refused:
            if _REPLACE in refused.next_step:
                raise FolderInUse(
                    refused.what,
                    next_step="run in a folder without them: --in FOLDER, with the folder that has the inputs: --inputs FOLDER",
                ) from None
            raise
    if not found:
        return code
    if as_json:
        from pilotage import app

        emit([app.json_text(found[0])])
    else:
        emit(_report_lines(found[0]))
    return ExitCode.COMPLETE if found[0].same else ExitCode.FAILED


def _refuse_unknown(site: str, sites: str) -> None:
    """Refuse a site that is not known here: its packages would run anywhere."""
    from pilotage.app.provenance.expected_environment import known_site_names

    if site not in (known := known_site_names(_sites(sites))):
        raise click.UsageError(f"There is no site {site!r} here. Known are: {', '.join(sorted(known))}.")


def _sites(given: str) -> str:
    """The file of sites: the folder of the new run has none of its own."""
    file = Path(given or SITES_FILE).expanduser().absolute()
    return str(file) if given or file.is_file() else ""


def _report(following: JobWatcher, rebuilt: Rebuilt, recorded: RecordedJobs) -> RerunReport:
    from pilotage.app.provenance.rerun import recorded_report

    return following.ask(lambda server: recorded_report(server, following.job, rebuilt, recorded.records))


def _nodes_at(server: str | None, token_file: str | None, sites: Collection[str]) -> list[RecordNode]:
    """The nodes of sites that the service here knows; none without a service, such as beside a copy of a storage."""
    from pilotage.app.provenance.expected_environment import nodes_at
    from pilotage.model.errors import PilotageError

    try:
        with connect_to_read(server, token_file) as connection:
            return nodes_at(connection, sites)
    except PilotageError as fault:
        log.info("no node of %s is known: %s", ", ".join(sorted(sites)), fault)
        return []


def _expected_lines(expected: ExpectedEnvironment) -> Iterator[str]:
    """What will differ, as far as it is known."""
    from pilotage.app.provenance.expected_environment import LOCAL

    names = [one_line(each) for each in expected.sites if each != LOCAL]
    if not expected.nodes:
        yield f"  no node of {' or '.join(names)} is known yet\n"
        return
    here = ["this computer"] if LOCAL in expected.sites else []
    words = [*here, *(f"what is known of {name}" for name in names)]
    differences = (*expected.software, *expected.environment)
    plural_verb = "are" if len(words) > 1 else "is"
    if not differences:
        yield f"  {' and '.join(words)} {plural_verb} as recorded\n"
        return
    yield f"  {' and '.join(words)} {plural_verb} not as recorded\n"
    yield from (f"  {line}" for line in difference_lines(differences))


def _before_lines(rebuilt: Rebuilt) -> Iterator[str]:
    states = [each.state for each in rebuilt.inputs]
    kept, checked = states.count("kept"), states.count("same")
    yield f"{rebuilt.history.job.id} again in {rebuilt.folder}\n"
    others = f", {plural(checked, 'other input')} as {'it was' if checked == 1 else 'they were'}" if checked else ""
    yield f"  {plural(kept, 'file')} from the record{others}\n"
    yield from _input_lines(each for each in rebuilt.inputs if each.state not in ("kept", "same"))
    yield from _expected_lines(rebuilt.expected)


_INPUT_WORDS = {
    "changed": "has changed",
    "missing": "is missing",
    "unchecked": "is not checked: the record has no checksum of it",
    "fetched": "is fetched from {place}",
}


def _input_lines(inputs: Iterable[InputChecked]) -> Iterator[str]:
    for each in inputs:
        yield f"  {one_line(each.name)} {_INPUT_WORDS[each.state].format(place=one_line(each.place))}\n"


def _report_lines(report: RerunReport) -> Iterator[str]:
    for title, differences in (("software", report.software), ("environment", report.environment)):
        if differences:
            yield f"{title} is not the same\n"
            yield from difference_lines(differences)
    if not report.software and not report.environment:
        yield "software and environment are the same\n"
    if report.packages:
        yield "packages did not end alike\n"
        yield from difference_lines(report.packages[:SHOWN_MAX])
    yield from output_lines(report.outputs)
    yield f"the same again: {report.rerun_of}\n" if report.same else f"not the same as {report.rerun_of}\n"


def difference_lines(differences: Iterable[Difference]) -> Iterator[str]:
    """What differs, a line each."""
    for each in differences:
        without = _NOT_REPORTED if each.what.startswith("variable ") else "none"
        before, after = (without if text is None else one_line(text) for text in (each.before, each.after))
        yield f"  {one_line(each.what)}: {before} → {after}\n"


def output_lines(outputs: Iterable[OutputCompared]) -> Iterator[str]:
    """How many outputs there are of each verdict, and those that are not identical."""
    from pilotage.app.provenance.rerun import counts_of

    listed = list(outputs)
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in counts_of(listed))
    yield f"outputs: {counts or 'none'}\n"
    shown = [each for each in listed if each.verdict != "identical"]
    for each in shown[:SHOWN_MAX]:
        why = f": {one_line(each.difference)}" if each.difference else ""
        yield f"  {one_line(each.name)} ({each.package}) is {each.verdict}{why}\n"
    if len(shown) > SHOWN_MAX:
        yield f"  … and {len(shown) - SHOWN_MAX:,} more (--json lists all)\n"
