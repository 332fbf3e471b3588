"""Reads, checks, draws and converts documents.

Everything heavy is imported where it is used, so that small commands are quick.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from pilotage.model.errors import DocumentError, Problem, did_you_mean

if TYPE_CHECKING:
    from pilotage.app.documents.earlier_jobs import BookedJobs
    from pilotage.language import Format as Format  # noqa: PLC0414 # offered on
    from pilotage.language import LateStage, Report
    from pilotage.language import LoadedJob as LoadedJob  # noqa: PLC0414 # offered on
    from pilotage.language import LoadResult as LoadResult  # noqa: PLC0414 # offered on
    from pilotage.language.drawing import Drawing as Drawing  # noqa: PLC0414 # offered on
    from pilotage.language.folder import CachedFile, EarlierOutputs
    from pilotage.language.text.locators import InstalledSchemes

STANDARD_INPUT = "-"
NOT_WRITTEN = "what would be written"
SOURCE_BYTES_MAX = 256 * 2**20
_PACKED = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
GZIP_MAGIC = b"\x1f\x8b"
_HEAD_BYTES = 8192
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\f\r\x1b") + b"\x7f"
_OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


# --- reading ----------------------------------------------------------------------------------------------------------


def find_document(folder: str = ".") -> str:
    """The name of the document in a folder; raises `DocumentError` if there is none."""
    from pilotage.model.jobs.definition import DOCUMENT_NAMES

    for name in DOCUMENT_NAMES:
        path = Path(folder, name)
        if path.exists():
            return str(path)
    message = f"there is no {DOCUMENT_NAMES[0]} in this folder"
    hint = "name a file, or write a first document: pilotage init"
    raise _unreadable(str(Path(folder, DOCUMENT_NAMES[0])), "no-document", message, hint)


def load(
    path: str | os.PathLike[str],
    *,
    source_format: Format | None = None,
    parameters: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] = (),
) -> LoadedJob:
    """Read, check and expand a document of any known format; raises `DocumentError` with all its faults.

    `parameters` are values for the parameters it declares. Packages that none of the files `targets` needs are left
    out; targets are relative to the folder of the document, or to the current one.
    """
    name = os.fspath(path)
    wanted = named_from(_folder_of(name), targets)
    return examine(name, source_format=source_format, parameters=parameters, targets=wanted).job()


def named_from(folder: Path, targets: str | Sequence[str]) -> tuple[str, ...]:
    """The names of targets relative to a document's folder, whether given relative to it or to the current folder."""
    words = (targets,) if isinstance(targets, str) else targets
    return tuple(_named_from(folder, word) for word in words)


def _named_from(folder: Path, word: str) -> str:
    name = os.path.relpath(word, folder) if word else word
    return Path(word).as_posix() if name.startswith("..") else Path(name).as_posix()


def installed_schemes() -> list[str]:
    """The schemes of locators that stores of this installation have."""
    from pilotage.app.adapter_registry import adapter_names

    return adapter_names("pilotage.stores")


def examine(
    source: str | None,
    *,
    source_format: Format | None = None,
    schemes: InstalledSchemes | None = installed_schemes,
    parameters: Mapping[str, Any] | None = None,
    targets: Sequence[str] = (),
) -> LoadResult:
    """The same without raising for faults of the document: its report has all of them.

    None is the document of the current folder. Packages that none of the files `targets` needs are left out. `schemes` are
    those of the stores that the job can use; None: those of a service that may be elsewhere, which checks them itself.
    """
    from pilotage.language import DiskFolder, LoadResult, Report
    from pilotage.language import load as understand
    from pilotage.language.load import EXECUTORS

    try:
        source = find_document() if source is None else source
        data = read_source(source)
        if source_format in ("yaml", "dagman"):
            _refuse_gzip(data, source)
    except DocumentError as refusal:
        report = Report(refusal.problems[0].file)
        report.errors.extend(refusal.problems)
        return LoadResult(source_format or "yaml", None, None, report)
    from pilotage.app.documents.parameters import parameters_of

    place = _folder_of(source)
    executors: Collection[str] = EXECUTORS
    if b"executor" in data:
        from pilotage.app.sites.entries import executors_for

        executors = {*EXECUTORS, *executors_for(place)}
    return understand(
        data,
        file=shown_name(source),
        folder=DiskFolder(place),
        source_format=source_format,
        jobs=EarlierJobs(place),
        executors=executors,
        schemes=schemes,
        parameters=parameters_of(parameters or {}),
        targets=targets,
    )


class EarlierJobs:
    """The jobs in the book of a folder; opened, and imported, only when a document refers to one."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._booked: BookedJobs | None = None

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """The outputs of a job that match a pattern; the job is given by id or name."""
        return self._opened().outputs(job, pattern)

    def cached_files(self, site: str) -> list[CachedFile] | None:
        """The files in the cache of a site."""
        return self._opened().cached_files(site)

    def _opened(self) -> BookedJobs:
        if self._booked is None:
            from pilotage.app.documents.earlier_jobs import BookedJobs

            self._booked = BookedJobs(self._place.absolute())
        return self._booked


def read_source(source: str) -> bytes:
    """The bytes of a file, or of standard input for `-`; raises `DocumentError` with the reason."""
    if not source:
        raise _unreadable(source, "missing-file", "the name of the file is empty")
    try:
        if source == STANDARD_INPUT:
            return _limited(sys.stdin.buffer, source)
        found = os.stat(source)  # noqa: PTH116 # a name with NUL or too long must fail here, as it does for Path
        if stat.S_ISDIR(found.st_mode):
            inside = [name for name in ("pilotage.yaml", "pilotage.yml") if Path(source, name).is_file()]
            hint = f"did you mean {shown_name(str(Path(source, inside[0])))!r}?" if inside else "name a file inside it"
            raise _unreadable(source, "is-directory", "this is a folder, not a file", hint)
        if not stat.S_ISREG(found.st_mode) and source != os.devnull and not source.startswith(_OPEN_ALREADY):
            # Opening a named pipe would wait for a writer for ever, and a device may never end.
            raise _unreadable(
                source, "not-a-file", f"this is {_kind_of(found.st_mode)}, not a file", "read it with: - < FILE"
            )
        if found.st_size > SOURCE_BYTES_MAX:
            raise _too_large(source, f"{found.st_size:,} bytes")
        with Path(source).open("rb") as file:
            return _limited(file, source)
    except FileNotFoundError:
        raise _unreadable(source, "missing-file", "there is no such file", _near_files(source)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unreadable(source, "unreadable-file", f"it cannot be read: {reason.lower()}") from None


def _limited(file: IO[bytes], source: str) -> bytes:
    data = file.read(SOURCE_BYTES_MAX + 1)
    if len(data) > SOURCE_BYTES_MAX:
        raise _too_large(source, f"more than {SOURCE_BYTES_MAX:,} bytes")
    packed = next((word for magic, word in _PACKED.items() if data.startswith(magic)), "")
    if packed:
        raise _unreadable(source, "not-text", f"this is a {packed} file, not text", "unpack it first")
    _refuse_binary(data[:_HEAD_BYTES], source)
    return data


def _refuse_binary(head: bytes, source: str) -> None:
    """Report a binary file once, instead of a fault at every other byte; other encodings are left to the reader."""
    if head.startswith((GZIP_MAGIC, b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if b"\0" in head or controls * 20 > len(head):
        found = (
            f"there is a NUL byte at offset {head.index(0)}" if b"\0" in head else "it is full of control characters"
        )
        raise _unreadable(source, "not-text", f"this is a binary file, not text: {found}")


def _refuse_gzip(data: bytes, source: str) -> None:
    if data.startswith(GZIP_MAGIC):
        raise _unreadable(source, "not-text", "this is a gzip file, not text", "unpack it first")


def _too_large(source: str, size: str) -> DocumentError:
    return _unreadable(source, "too-large", f"it has {size}; at most {SOURCE_BYTES_MAX:,} are read")


def _unreadable(source: str, code: str, message: str, hint: str = "") -> DocumentError:
    return DocumentError([Problem(file=shown_name(source), code=code, message=message, hint=hint)])


def _kind_of(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))
    return next((noun for is_kind, noun in kinds if is_kind(mode)), "a device")


def _near_files(source: str) -> str:
    """A hint that names a file of nearly this name."""
    path = Path(source)
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_file()]
    except OSError:
        return f"there is no folder {shown_name(str(path.parent))!r}"
    hint = did_you_mean(path.name, map(shown_name, names)) if len(names) <= 1000 else ""
    return hint if hint.startswith("did you") else ""


def _folder_of(source: str | None) -> Path:
    """The folder that the names in a document are relative to."""
    if source is None or source == STANDARD_INPUT or source.startswith(_OPEN_ALREADY):
        return Path()
    return Path(source).parent


def shown_name(name: str) -> str:
    """A file's name as printable text, whatever its bytes."""
    if name in ("", STANDARD_INPUT):
        return "<stdin>" if name else "''"
    return os.fsencode(name).decode("utf-8", errors="replace")


# --- checking ---------------------------------------------------------------------------------------------------------


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `check`. What an error prevented is None."""

    file: str  # its name, printable
    valid: bool
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    job: str | None = None
    stages: int | None = None
    lines: int | None = None
    packages: int | None = None
    binaries: int | None = None
    files: int | None = None
    edges: int | None = None
    critical_path_seconds: float | None = None
    late: tuple[LateStage, ...] = ()  # stages whose packages are not known yet
    moved: str = ""  # what is brought to sites and stored, in a sentence
    losses: int = 0  # parts of an imported document that have no meaning here


_PROBLEM_FIELDS = ("file", "line", "column", "code", "message", "hint")
_LATER_CONTROLS = re.compile("[\x7f-\x9f]")  # JSON itself escapes only the earlier ones
_NOT_IN_JSON = ("file", "late", "losses", "moved")


def check(
    source: str | None, *, source_format: Format | None = None, parameters: Mapping[str, Any] | None = None
) -> CheckResult:
    """Read, check and expand a document, the current folder's for None, and count its parts."""
    from pilotage.language import DiskFolder
    from pilotage.language.drawing.file_count import count_files
    from pilotage.language.expansion.advice import warn_of_missing_programs
    from pilotage.language.file_checks import files_summary
    from pilotage.language.file_plan import file_plan_of

    loaded = examine(source, source_format=source_format, parameters=parameters)
    if loaded.read is not None and loaded.format == "yaml":
        warn_of_missing_programs(loaded.read, DiskFolder(_folder_of(source)))
    errors = DocumentError(loaded.report.errors).problems
    warnings = DocumentError(loaded.report.warnings).problems
    definition = loaded.document.definition if loaded.document else None
    expansion = loaded.expansion
    known: dict[str, Any] = {}
    if definition is not None:
        known |= {"job": definition.job, "stages": len(definition.stages)}
    if expansion is not None:
        known |= {
            "lines": expansion.lines,
            "packages": expansion.count,
            "binaries": expansion.binaries,
            "files": count_files(expansion),
            "edges": expansion.graph.edge_count,
            "critical_path_seconds": expansion.critical_path_seconds(),
            "late": expansion.late,
            "moved": files_summary(expansion, file_plan_of(expansion)),
        }
    return CheckResult(
        file=loaded.report.file, valid=not errors, errors=errors, warnings=warnings, losses=len(loaded.losses), **known
    )


def check_json(verdict: CheckResult) -> str:
    """The result as the JSON object that other programs rely on."""
    found = {name: getattr(verdict, name) for name in verdict.__struct_fields__ if name not in _NOT_IN_JSON}
    for name in ("errors", "warnings"):
        found[name] = [{field: getattr(problem, field) for field in _PROBLEM_FIELDS} for problem in found[name]]
    return json_text(found)


def json_text(value: object) -> str:
    """Readable JSON that ends its last line, without control characters for a terminal."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return _LATER_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def document_schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    from pilotage.language.parsing.schema import document_schema as schema

    return schema()


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(loaded: LoadedJob, drawing: Drawing, *, columns: int = 80) -> Iterator[str]:
    """Draw the graph of a loaded job, in pieces."""
    from pilotage.language.drawing import draw as pieces

    return pieces(loaded.expansion, drawing, columns=columns)


def text_cells(text: str) -> int:
    """How many cells of a terminal a text fills."""
    from pilotage.language.drawing.picture import cells

    return cells(text)


# --- converting -------------------------------------------------------------------------------------------------------


class SidedLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Something lost in a conversion, and on which side: reading one format, or writing the other."""

    side: str  # "import" or "export"
    file: str
    line: int
    keyword: str
    reason: str


class Converted(msgspec.Struct, frozen=True):
    """A job in another format: its files by name, the main one first, and everything that was lost."""

    files: Mapping[str, str]
    losses: tuple[SidedLoss, ...]


def convert(loaded: LoadedJob, target: Format) -> Converted:
    """Write a loaded job in another format."""
    job = loaded.definition.job
    lost: Iterable[Any] = ()
    files: Mapping[str, str]
    if target == "yaml":
        from pilotage.language import write_document

        files = {"pilotage.yaml": write_document(loaded.definition)}
    elif target == "dagman":
        from pilotage.language.formats.dagman import write_dagman

        files, lost = write_dagman(loaded.expansion)
    else:
        from pilotage.language.formats.wfformat import write_wfformat

        text, lost = write_wfformat(loaded.expansion)
        files = {f"{job}.json": text}
    return Converted(files, (*_sided("import", loaded.losses), *_sided("export", lost)))


def _sided(side: str, losses: Iterable[Any]) -> list[SidedLoss]:
    return [
        SidedLoss(side=side, file=loss.file, line=loss.line, keyword=loss.keyword, reason=loss.reason)
        for loss in losses
    ]


# --- software ---------------------------------------------------------------------------------------------------------


def software_command(descriptor: str, invocation: str) -> str:
    """The command line of a Boutiques descriptor for an invocation, both given as files.

    Raises `DocumentError` with everything that is wrong with either.
    """
    from pilotage.language import boutiques

    text, report = text_of(descriptor)
    parsed = boutiques.parse_descriptor(text, report) if text is not None else None
    values_text, invocation_report = text_of(invocation)
    values = boutiques.parse_invocation(values_text, invocation_report) if values_text is not None else {}
    if parsed is not None and not invocation_report.errors:
        boutiques.check_invocation(parsed, values, invocation_report)
    faults = [*report.errors, *invocation_report.errors]
    if parsed is None or faults:
        raise DocumentError(faults)
    return boutiques.command_line(parsed, values)


def text_of(source: str) -> tuple[str | None, Report]:
    """The text of a file; or None, and the reason in the report."""
    from pilotage.language import Report

    report = Report(shown_name(source))
    try:
        data = read_source(source)
        _refuse_gzip(data, source)
        text = data.decode("utf-8-sig")
    except DocumentError as refusal:
        report.errors.extend(refusal.problems)
        return None, report
    except UnicodeDecodeError as error:
        report.error("not-utf8", f"the byte at offset {error.start} is not UTF-8", hint="save the text as UTF-8")
        return None, report
    report.lines = text.split("\n")
    return text, report


# --- a first document -------------------------------------------------------------------------------------------------


def first_document(fields: Mapping[str, object], *, folder: str = ".") -> str:
    """The text of a document with the given fields.

    Raises `DocumentError` if it would be refused in that folder; without positions, since the file does not exist yet.
    """
    from pilotage.language import DiskFolder
    from pilotage.language import load as understand
    from pilotage.language.text.emit import write_yaml

    text = write_yaml(fields)
    loaded = understand(text.encode(), file=NOT_WRITTEN, folder=DiskFolder(folder), source_format="yaml")
    if loaded.report.errors:
        raise DocumentError(msgspec.structs.replace(problem, line=0) for problem in loaded.report.errors)
    return text


def shell_words(text: str) -> list[str]:
    """The words of a command that only a shell would understand."""
    from pilotage.language.parsing.records import shell_words as words

    return words(text)


def table_columns(name: str) -> tuple[str, ...]:
    """The column names of a CSV file; raises `DocumentError` if it cannot be read."""
    from pilotage.language import DiskFolder
    from pilotage.language.expansion.lists import ListFault, RecordingLists

    try:
        return tuple(RecordingLists(DiskFolder(".")).columns(name))
    except ListFault as fault:
        raise _unreadable(name, fault.code, fault.message, fault.hint) from None


def missing_file_hint(name: str) -> str:
    """A hint for a missing file: one of nearly its name, or its missing folder."""
    return _near_files(name)
