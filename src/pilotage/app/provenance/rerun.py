"""Runs a recorded job again: rebuilds its folder from the record, checks its inputs, and compares what comes out."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from pilotage.app.provenance.expected_environment import ExpectedEnvironment
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.provenance.differences import (
    SAME,
    compare_outputs,
    differences_of,
    differing,
    environment_of,
    outputs_of,
    software_differences,
    states_of,
)
from pilotage.provenance.differences import Difference as Difference  # noqa: PLC0414 # offered on
from pilotage.provenance.differences import JobDifferences as JobDifferences  # noqa: PLC0414 # offered on
from pilotage.provenance.differences import OutputCompared as OutputCompared  # noqa: PLC0414 # offered on
from pilotage.provenance.history import FileUse, History, history_of
from pilotage.provenance.reconstruction import NeededFile, Reconstruction, reconstruct

if TYPE_CHECKING:
    from pilotage.app.provenance.recorded_jobs import RecordedJobs
    from pilotage.client import Server
    from pilotage.language import LoadedJob
    from pilotage.ports.records import RecordReader

DOCUMENT = "pilotage.yaml"
RERUN_OF = "rerun_of"
"""The tag that names the job which a new run repeats."""
COMPARED_BYTES_MAX = 64 * 2**20
"""A larger output is compared by its checksum alone."""
_PIECE_BYTES = 2**20
_NAMED_MAX = 10

InputState = Literal["kept", "same", "changed", "missing", "unchecked", "fetched"]
"""`kept`: its content is in the record; `unchecked`: the record has no checksum; `fetched`: the agent gets it from its locator."""


class InputsDiffer(PilotageError):
    """Inputs that are not in the record are missing, or are not what they were. `--anyway` runs with what is there."""


class FolderInUse(PilotageError):
    """The folder for the new run has other files than the record. Name another one with `--in`."""


class InputChecked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input of the new run, and whether it is what it was."""

    name: str
    state: InputState
    sha256: str | None = None  # as it was
    found: str | None = None  # as it is, if it was changed
    place: str = ""  # where it was found, unless in the record


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded job, ready to run in a folder of its own."""

    history: History
    reconstruction: Reconstruction
    folder: Path
    document: str  # the name of its file
    load: Callable[[], LoadedJob]
    inputs: tuple[InputChecked, ...]
    expected: ExpectedEnvironment


class RerunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a new run compares with the recorded one; `same`: packages ended alike, and outputs are identical, or equal as declared."""

    job: str
    rerun_of: str
    package: str
    folder: str
    same: bool
    packages: tuple[Difference, ...]  # that did not end in the same state
    outputs: tuple[OutputCompared, ...]
    software: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    inputs: tuple[InputChecked, ...]
    expected: ExpectedEnvironment  # what was known to differ before the run


def rerun_folder(job: str, package: str) -> Path:
    """The folder of a new run, if none is named: below the current one. Raises `FolderInUse`."""
    folder = Path(f"rerun-{job}" + (f"-{package.replace('/', '-')}" if package else "")).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderInUse(
            "the folder exists already", subject=str(folder), next_step="name another one with --in FOLDER"
        )
    return folder


def rebuild(
    history: History,
    records: RecordReader,
    *,
    folder: Path,
    package: str = "",
    executor: str = "",
    inputs_folder: Path | None = None,
    anyway: bool = False,
    expected: ExpectedEnvironment,
) -> Rebuilt:
    """Write the definition and the files of a recorded job into a folder.

    Files that are not in the record are taken from that folder, or else copied from `inputs_folder`, or where the job ran. Raises `InputsDiffer`
    before anything is written, unless `anyway`; `FolderInUse`, and `NotRepeatable`.
    """
    wanted = reconstruct(history, package=package, executor=executor)
    old = Path(history.job.folder) if history.job.folder else None
    inputs = tuple(_checked(each, (folder, inputs_folder, old)) for each in wanted.files)
    _refuse_other_files(wanted.files, folder)
    _refuse_other_document(wanted, folder, history)
    bad = [each for each in inputs if each.state in ("changed", "missing")]
    if bad and not anyway:
        raise _inputs_differ(history, bad)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, checked in zip(wanted.files, inputs, strict=True):
            _place(file, checked, folder, records.content)
        _write_document(wanted, folder, history)
    except OSError as fault:
        raise PilotageError(f"the folder cannot be written: {fault.strerror or fault}", subject=str(folder)) from fault
    return Rebuilt(
        history=history,
        reconstruction=wanted,
        folder=folder,
        document=DOCUMENT,
        load=lambda: _loaded(wanted, folder),
        inputs=inputs,
        expected=expected,
    )


def _checked(file: NeededFile, places: Iterable[Path | None]) -> InputChecked:
    """Whether an input is what it was: in the record, or in one of some folders."""
    if file.kept:
        return InputChecked(name=file.name, state="kept", sha256=file.sha256)
    if file.locator:
        return InputChecked(name=file.name, state="fetched", sha256=file.sha256, place=file.locator)
    changed: InputChecked | None = None
    for place in places:
        found = place / file.name if place is not None else None
        if found is None or not found.is_file():
            continue
        sha256 = checksum(found) if file.sha256 is not None else None
        if sha256 == file.sha256:
            state: InputState = "same" if sha256 is not None else "unchecked"
            return InputChecked(name=file.name, state=state, sha256=file.sha256, place=str(found))
        changed = changed or InputChecked(
            name=file.name, state="changed", sha256=file.sha256, found=sha256, place=str(found)
        )
    return changed or InputChecked(name=file.name, state="missing", sha256=file.sha256)


def _refuse_other_files(files: Iterable[NeededFile], folder: Path) -> None:
    for file in files:
        there = folder / file.name
        if file.kept and there.exists() and (not there.is_file() or checksum(there) != file.sha256):
            raise FolderInUse(
                f"{file.name} there is not the one of the record",
                subject=str(folder),
                next_step="remove it, or name another folder with --in",
            )


def _inputs_differ(history: History, bad: list[InputChecked]) -> InputsDiffer:
    words = []
    for each in bad[:_NAMED_MAX]:
        if each.state == "missing":
            words.append(f"{each.name} is missing")
        else:
            words.append(
                f"{each.name} has changed (sha256 {(each.found or '')[:12]} instead of {(each.sha256 or '')[:12]})"
            )
    more = f", and {len(bad) - _NAMED_MAX:,} more" if len(bad) > _NAMED_MAX else ""
    return InputsDiffer(
        "; ".join(words) + more,
        subject=f"job {history.job.id}",
        next_step="name the folder that has them as they were with --inputs FOLDER, or run with what is there: --anyway",
    )


def _place(file: NeededFile, checked: InputChecked, folder: Path, content: Callable[[str], bytes]) -> None:
    """Put a file into the folder, unless it is there."""
    target = folder / file.name
    if checked.state in ("missing", "fetched"):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if checked.state == "kept":
        assert file.sha256 is not None
        if not target.exists():
            target.write_bytes(content(file.sha256))
    elif Path(checked.place) != target:
        if target.is_symlink() or target.exists():
            target.unlink()  # another content, which only --anyway allows
        shutil.copyfile(checked.place, target)
    if file.executable:
        target.chmod(target.stat().st_mode | 0o111)


def _document(wanted: Reconstruction, history: History) -> str:
    """The definition of a new run as text; empty if the record has the document itself."""
    from pilotage.language.parsing.document import write_document

    if any(each.name == DOCUMENT for each in wanted.files):
        return ""
    return f"# Job {history.job.id} again, from its record.\n{write_document(wanted.definition)}"


def _refuse_other_document(wanted: Reconstruction, folder: Path, history: History) -> None:
    text, there = _document(wanted, history), folder / DOCUMENT
    if not text or not (there.is_symlink() or there.exists()):
        return
    if not there.is_file() or there.is_symlink() or there.read_bytes() != text.encode():
        raise FolderInUse(
            f"there is a {DOCUMENT} already, and not the one of the record",
            subject=str(folder),
            next_step="remove it, or name another folder with --in",
        )


def _write_document(wanted: Reconstruction, folder: Path, history: History) -> None:
    """Write the definition next to the files, for whoever looks there."""
    if text := _document(wanted, history):
        (folder / DOCUMENT).write_text(text, encoding="utf-8")


def _loaded(wanted: Reconstruction, folder: Path) -> LoadedJob:
    from pilotage.language import DiskFolder, LoadedJob, Report
    from pilotage.language.expansion.expand import expand
    from pilotage.language.expansion.lists import RecordedLists, RecordingLists

    lists = RecordedLists(wanted.lists) if wanted.lists is not None else RecordingLists(DiskFolder(folder))
    report = Report(DOCUMENT)
    expansion = expand(wanted.definition, lists, report)
    if expansion is None or report.errors:
        raise DocumentError(report.errors)
    return LoadedJob(wanted.definition, expansion, (), (), "yaml")


def checksum(file: Path) -> str:
    """The sha256 of a file. Raises `PilotageError`."""
    hashed = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while piece := opened.read(_PIECE_BYTES):
                hashed.update(piece)
    except OSError as fault:
        raise PilotageError(f"it cannot be read: {fault.strerror}", subject=str(file)) from fault
    return hashed.hexdigest()


# --- comparing --------------------------------------------------------------------------------------------------------


def report_of(rebuilt: Rebuilt, after: History, *, read_before: RecordReader, read_after: RecordReader) -> RerunReport:
    """Compare a new run with the recorded one."""
    before, wanted = rebuilt.history, rebuilt.reconstruction
    outputs = tuple(
        compare_outputs(
            outputs_of(before, packages=wanted.compared),
            outputs_of(after),
            wanted.definition.compare,
            read_before=output_reader(before, read_before),
            read_after=output_reader(after, read_after),
        )
    )
    packages = tuple(differing(states_of(before), states_of(after)))
    if wanted.compared is not None:  # a package that ran alone has another place
        packages = tuple(differing({each: states_of(before)[each] for each in wanted.compared}, _alone(wanted, after)))
    return RerunReport(
        job=after.job.id,
        rerun_of=before.job.id,
        package=next(iter(wanted.compared or ()), ""),
        folder=str(rebuilt.folder),
        same=not packages and all(each.verdict in SAME for each in outputs),
        packages=packages,
        outputs=outputs,
        software=tuple(software_differences(before, after)),
        environment=tuple(differing(environment_of(before), environment_of(after))),
        inputs=rebuilt.inputs,
        expected=rebuilt.expected,
    )


def _alone(wanted: Reconstruction, after: History) -> dict[str, str]:
    """How the only package of a new run ended, by the place that it had in the first one."""
    return dict(zip(wanted.compared or (), states_of(after).values(), strict=True))


def output_reader(history: History, records: RecordReader) -> Callable[[FileUse], bytes | None]:
    """Reads outputs of a job: kept in its record, or still unchanged where the job made them."""
    parts = {part.sha256 for part in history.record.parts}
    folder = Path(history.job.folder) if history.job.folder else None

    def read(file: FileUse) -> bytes | None:
        if file.sha256 in parts:
            assert file.sha256 is not None
            return records.content(file.sha256)
        place = folder / file.name if folder is not None else None
        if place is None or file.sha256 is None or not _is_small(place):
            return None
        content = place.read_bytes()
        return content if hashlib.sha256(content).hexdigest() == file.sha256 else None

    return read


def _is_small(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size <= COMPARED_BYTES_MAX
    except OSError:
        return False


def counts_of(outputs: Iterable[OutputCompared]) -> Iterator[tuple[str, int]]:
    """How many outputs there are of each verdict, in a fixed order."""
    found = [each.verdict for each in outputs]
    for verdict in ("identical", "equal", "different", "missing", "new", "unknown"):
        if count := found.count(verdict):
            yield verdict, count


def recorded_report(server: Server, job: str, rebuilt: Rebuilt, records: RecordReader) -> RerunReport:
    """Have the record of a new run made by its service, and compare it with the first one, whose record is in `records`."""
    from pilotage.app.provenance.served_records import records_at

    made = records_at(server)
    made.make_when_ready(job)
    record = made.record(job)
    assert record is not None, "the service has just made it"
    return report_of(rebuilt, history_of(record, made.content), read_before=records, read_after=made)


def job_differences(recorded: RecordedJobs, first: str, second: str) -> JobDifferences:
    """What differs between two recorded jobs. Raises `UnknownRecordedJob`."""
    before, after = recorded.opened(first), recorded.opened(second)
    return differences_of(
        before,
        after,
        read_before=output_reader(before, recorded.records),
        read_after=output_reader(after, recorded.records),
    )
