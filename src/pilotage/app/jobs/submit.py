"""Submits a document to a service: reads and checks it, and sends it with the files it brings along."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pilotage.app.documents.documents import EarlierJobs, examine, find_document, installed_schemes, named_from
from pilotage.model.errors import PilotageError
from pilotage.model.jobs.run_options import RunOptions, given_options
from pilotage.model.jobs.submission import submission_of

if TYPE_CHECKING:
    from pilotage.app.jobs.elsewhere import Report, SentFiles
    from pilotage.client import Server
    from pilotage.language import LoadedJob
    from pilotage.language.builder import Job
    from pilotage.language.text.locators import InstalledSchemes
    from pilotage.model.jobs.submission import Submission, SubmissionAnswer

BROUGHT_MAX = 4
"""How often to submit again, if the service stops before it has answered."""


class RunSettings(RunOptions, frozen=True, kw_only=True):
    """Options of a run, besides the document."""

    slots: int | None = None  # None: the number of cores
    sites: str = ""  # the file of sites; empty: the default one
    only_if_needed: bool = False  # if all outputs exist, no job is made
    owner: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)  # to keep with the job; `@FILE`: that file


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A document to run: where it is, and how to load it, which may take a moment."""

    folder: Path  # absolute: the root of the job's tree
    document: str  # its name, for messages; the same name in the same folder is the same document
    load: Callable[[], LoadedJob]


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted job; without an id there was nothing to do."""

    answer: SubmissionAnswer
    name: str
    folder: Path
    sent: SentFiles | None = None  # its files, if the service does not see the folder


def source_of(
    job: Job | LoadedJob | str | os.PathLike[str] | None,
    *,
    folder: str | Path | None = None,
    schemes: InstalledSchemes | None = installed_schemes,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
) -> Source:
    """The document to run: by its path, the current folder's for None, or a job built in Python.

    The files of a job built in Python are in `folder`, or the current one. `parameters` are values for those it
    declares, and `targets` the files to make; a loaded job has both already. Nothing is read yet.
    """
    from pilotage.language import LoadedJob as Understood
    from pilotage.language.builder import Job as Built

    if isinstance(job, Built | Understood):
        place = Path(folder or ".").absolute()
        if isinstance(job, Built):
            from pilotage.app.documents.parameters import parameters_of

            built, chosen, jobs = job, parameters_of(parameters or {}), EarlierJobs(place)
            wanted = named_from(place, targets)
            return Source(
                folder=place,
                document="",
                load=lambda: built.load(str(place), jobs=jobs, parameters=chosen, targets=wanted),
            )
        if parameters or targets:
            what, form = ("parameters", "{…}") if parameters else ("targets", "[…]")
            raise PilotageError(
                f"the job is loaded, and its {what} are chosen", next_step=f"give them to load, as {what}={form}"
            )
        known = job
        return Source(folder=place, document="", load=lambda: known)
    return document_source(job, schemes=schemes, parameters=parameters, targets=targets)


def document_source(
    path: str | os.PathLike[str] | None,
    *,
    source_format: Any = None,
    schemes: InstalledSchemes | None = installed_schemes,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
) -> Source:
    """The document at a path, or of the current folder; raises `DocumentError` if there is none.

    `targets` are the files to make, relative to its folder or the current one; none: all outputs. `schemes` are those of
    the stores that the job can use; None: those of a service that may be elsewhere.
    """
    name = find_document() if path is None else os.fspath(path)
    whole = Path(name).absolute()
    wanted = named_from(whole.parent, targets)  # now, while the current folder is known
    return Source(
        folder=whole.parent,
        document=whole.name,
        load=lambda: examine(
            name, source_format=source_format, schemes=schemes, parameters=parameters, targets=wanted
        ).job(),
    )


def submission(
    source: Source,
    loaded: LoadedJob,
    how: RunSettings,
    *,
    keep: Callable[[bytes], str],
    sent: SentFiles | None = None,
) -> Submission:
    """The submission for the service; files that the job brings along go through `keep`, unless all were `sent`."""
    if sent is None:
        from pilotage.service.works.capture import DiskFiles, capture

        captured = capture(loaded.expansion, DiskFiles(source.folder), keep)
    else:
        captured = sent.captured
    folder = os.path.realpath(source.folder)  # one folder, whatever links lead to it
    return submission_of(
        loaded.definition,
        loaded.expansion.resolved,
        folder=folder,
        sent_from=folder if sent is not None else "",
        document=source.document,
        captured=captured,
        format=loaded.format,
        owner=how.owner or loaded.definition.owner,
        # Results from elsewhere are fetched by the id of a job, so there is always one.
        only_if_needed=how.only_if_needed and sent is None,
        annotations={name: value for name, value in how.annotations.items() if not value.startswith("@")},
        custom={name: keep(_content_of(value[1:])) for name, value in how.annotations.items() if value.startswith("@")},
        **given_options(how),
    )


CUSTOM_BYTES_MAX = 64 * 2**20
"""The largest file of custom data."""


def _content_of(file: str) -> bytes:
    """A file of custom data. Raises `PilotageError`."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(CUSTOM_BYTES_MAX + 1)
    except (OSError, ValueError) as fault:
        raise PilotageError("this file of custom data cannot be read", subject=f"{file}: {fault}") from None
    if len(content) > CUSTOM_BYTES_MAX:
        raise PilotageError("this file of custom data is larger than 64 MiB", subject=file)
    return content


def annotations_of(texts: Sequence[str]) -> dict[str, str]:
    """Annotations from `NAME=VALUE` or `NAME=@FILE`; files are relative to the current folder. Raises `PilotageError`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PilotageError(
                "this is not an annotation", subject=text[:80], expected="NAME=VALUE, or NAME=@FILE for a file"
            )
        found[name] = f"@{Path(value[1:]).expanduser().absolute()}" if value.startswith("@") else value
    return found


def submit_to(connect: Callable[[], Server], source: Source, loaded: LoadedJob, how: RunSettings) -> Submitted:
    """Submit a job to the service that `connect` returns; if it stops meanwhile, connect again."""
    from pilotage.client.errors import ServerUnreachable

    for _ in range(BROUGHT_MAX - 1):
        try:
            with connect() as server:
                return submit_loaded(source, loaded, server, how)
        except ServerUnreachable:
            continue  # the same document again is the same job
    with connect() as server:
        return submit_loaded(source, loaded, server, how)


def submit_anywhere(
    source: Source, loaded: LoadedJob, server: Server, how: RunSettings, *, report: Report | None = None
) -> Submitted:
    """Submit a job to a service on this computer or another one; if it does not see the folder, all files are sent.

    `report` is called when sending takes long. Raises the refusal of the service.
    """
    from pilotage.app.jobs.elsewhere import sees_folder, send_files
    from pilotage.client.contents import CapturedFiles
    from pilotage.client.jobs import Jobs

    if sees_folder(server, source.folder):
        return submit_loaded(source, loaded, server, how)
    captured = CapturedFiles(server)
    sent = send_files(server, loaded, source.folder, keep=captured.keep, report=report)
    wanted = submission(source, loaded, how, keep=captured.keep, sent=sent)
    captured.send()
    answer = Jobs(server).submit(wanted)
    return Submitted(answer=answer, name=loaded.definition.job, folder=source.folder, sent=sent)


def submit_loaded(source: Source, loaded: LoadedJob, server: Server, how: RunSettings) -> Submitted:
    """Submit a job whose folder the service sees: upload what it brings along, then the job."""
    from pilotage.client.contents import CapturedFiles
    from pilotage.client.jobs import Jobs

    captured = CapturedFiles(server)
    wanted = submission(source, loaded, how, keep=captured.keep)
    captured.send()
    return Submitted(answer=Jobs(server).submit(wanted), name=loaded.definition.job, folder=source.folder)
