"""A record opened as values: the job, its packages with commands and attempts, and the files that they read and made.

The life log is folded again with the fold of the book; the definition and its lists are expanded again with the language. Packages
are made one by one while they are read: a job may have a hundred thousand.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from pilotage.book.fold.facts import read_tags, tags_of
from pilotage.book.rows.derived_states import running_since, settle
from pilotage.book.rows.rows import AttemptFacts, PackageFacts
from pilotage.book.rows.shapes import shape_of
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.lists import targets_of
from pilotage.language.expansion.packages import SHELL, ConcreteBinary, ConcretePackage
from pilotage.language.named_files import shell_words
from pilotage.language.package_inputs import concrete, is_brought, left_out_names, open_patterns, staged_names
from pilotage.language.recorded_jobs import RecordedJob, recall_job
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import matches
from pilotage.model.answers import Measured
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import BinaryEnd, InputsDescribed, OutputFile, PhaseTimes, StageExpanded
from pilotage.model.jobs.definition import Definition, Package
from pilotage.model.jobs.layout import PackageId
from pilotage.model.jobs.submission import RESOLVED, Captured, ResolvedLists
from pilotage.model.records import JobRecord, RecordNode
from pilotage.provenance.folded_job import FoldedJob, UnreadableRecord

__all__ = [
    "AttemptHistory",
    "Command",
    "FileUse",
    "History",
    "JobHistory",
    "PackageHistory",
    "UnreadableRecord",
    "history_of",
]

ReadPart = Callable[[str], bytes]
"""The content of a part by its digest."""

_MANIFESTS_MAX = 10_000  # of producers: their consumers come soon after them


class FileUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that a package read or made; what is not known of it is None.

    `source` is the package of the same job that made it, the content that came with the submission, or outside of the job.
    """

    name: str
    direction: Literal["consumed", "produced"]
    source: Literal["package", "captured", "outside"]
    package: str = ""  # dotted: the package that made it
    size_bytes: int | None = None
    sha256: str | None = None
    executable: bool = False
    locator: str = ""  # where it came from, if the document says so
    job: str = ""  # another job that made it


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command of a package."""

    argv: tuple[str, ...]
    name: str = ""
    software: str = ""  # id@version
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    environment: dict[str, str] = {}


class AttemptHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a package."""

    number: int
    epoch: int = 1
    site: str | None = None
    pilot: str | None = None
    node: str | None = None
    native_id: str | None = None
    created_at: float | None = None
    queued_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    granted: bool = False
    granted_at: float | None = None
    exit_code: str | None = None  # GASW's
    exit_status: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    phases: tuple[PhaseTimes, ...] = ()
    binaries: tuple[BinaryEnd, ...] = ()  # if it had several
    container_digest: str | None = None  # of the image that it ran in
    measured: Measured = Measured()
    files: tuple[OutputFile, ...] = ()  # that it staged
    custom: str | None = None  # the JSON object that the provenance script of the document printed
    cores: tuple[OutputFile, ...] = ()  # core files

    @property
    def seconds(self) -> float | None:
        """How long it ran, phases included."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(self.ended_at - self.started_at, 0.0)


class PackageHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One package of a job; a job of another scheduler has no commands and no names."""

    id: str  # dotted: 1.2.1
    number: int | None = None  # in the expansion of the job
    name: str = ""
    activity: str = ""
    stage: str = ""  # the name of its stage
    step: str = ""  # the stage, line and package of the definition, which packages of an iteration share: 2.1.1
    state: str = ""
    dropped: bool = False
    parameters: dict[str, str | tuple[str, ...]] = {}  # of its iteration; those of the job hold for all
    commands: tuple[Command, ...] = ()
    container: str = ""
    cores: float | None = None  # that it asked for
    after: tuple[str, ...] = ()  # dotted: the packages that it waited for
    attempts: tuple[AttemptHistory, ...] = ()
    granted_attempt: int | None = None  # whose outputs count; those granted before a restart do not
    files: tuple[FileUse, ...] = ()
    tags: dict[str, str] = {}
    reason: str | None = None
    cause: str | None = None

    @property
    def consumed(self) -> tuple[FileUse, ...]:
        """The files that it read."""
        return tuple(each for each in self.files if each.direction == "consumed")

    @property
    def produced(self) -> tuple[FileUse, ...]:
        """The files that it made."""
        return tuple(each for each in self.files if each.direction == "produced")

    @property
    def granted(self) -> AttemptHistory | None:
        """The attempt whose outputs count."""
        return next((each for each in self.attempts if each.number == self.granted_attempt), None)


class JobHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job itself; one of another scheduler has no definition."""

    id: str
    name: str
    owner: str
    state: str
    epoch: int = 1
    parent: str | None = None
    description: str = ""
    definition: Definition | None = None
    definition_text: str = ""  # canonical, as it is stored
    parameters: dict[str, str] = {}  # the chosen values
    dialect: str = ""  # the format of its document: yaml, dagman …
    document: str = ""
    folder: str = ""
    targets: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    captured: dict[str, Captured] = {}
    submitted_at: float | None = None
    accepted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    ended_at: float | None = None
    failed: int = 0  # packages that failed, or were cancelled
    cause: str | None = None


class History:
    """A record, opened; nothing of it changes."""

    __slots__ = ("_opened", "job", "lists", "nodes", "record")

    def __init__(self, record: JobRecord, job: JobHistory, lists: ResolvedLists, opened: _Opened) -> None:
        """Made by `history_of`."""
        self.record = record
        self.lists = lists  # as they were read for the submission
        self.job = job
        self.nodes: tuple[RecordNode, ...] = record.nodes
        self._opened = opened

    @property
    def package_count(self) -> int:
        """How many packages the job has."""
        return self._opened.count

    def packages(self) -> Iterator[PackageHistory]:
        """Every package, in the order of their places; each is made when it is asked for."""
        return map(self._opened.package, self._opened.places())

    def package(self, dotted: str) -> PackageHistory | None:
        """One package by its place, such as `1.2.1`; None if the job has none there."""
        from pilotage.model.events.events import parse_dotted

        place = parse_dotted(dotted)
        return self._opened.package(place) if place is not None and self._opened.has(place) else None

    def declared(self, number: int) -> tuple[Package, str]:
        """A package by its number as its document declares it, placeholders included, and its tag in the iteration."""
        return self._opened.declared(number)


def history_of(record: JobRecord, read_part: ReadPart) -> History:
    """Open a record. Raises what `read_part` does, and `UnreadableRecord`."""
    folded = FoldedJob(record, _event_lines(record, read_part))
    row = folded.row
    recorded = _recorded(record, folded, read_part) if row.definition is not None else None
    definition = recorded.definition if recorded is not None else None
    job = JobHistory(
        id=row.job,
        name=row.name,
        owner=row.owner,
        state=row.state,
        epoch=row.epoch,
        parent=row.parent,
        description=definition.description if definition is not None else "",
        definition=definition,
        definition_text=read_part(row.definition).decode("utf-8", "replace") if row.definition is not None else "",
        parameters=_chosen(definition) if definition is not None else {},
        dialect=recorded.origin.format if recorded is not None else "",
        document=recorded.origin.document if recorded is not None else "",
        folder=recorded.origin.folder if recorded is not None else "",
        targets=targets_of(recorded.lists.lists) if recorded is not None else (),
        tags=tags_of(read_tags(row.tags)),
        captured=recorded.origin.captured if recorded is not None else {},
        submitted_at=row.submitted_at,
        accepted_at=row.accepted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        ended_at=row.entered_at,
        failed=row.failed,
        cause=row.cause,
    )
    resolved = _texts(row.lists).get(RESOLVED) if recorded is not None else None
    lists = msgspec.json.decode(read_part(resolved), type=ResolvedLists) if resolved is not None else ResolvedLists()
    return History(record, job, lists, _Opened(folded, recorded))


def _event_lines(record: JobRecord, read_part: ReadPart) -> Iterator[bytes]:
    first = True
    for part in record.parts:
        if part.kind == "life-log":
            lines = read_part(part.sha256).splitlines()
            yield from lines[1:] if first else lines
            first = False


def _recorded(record: JobRecord, folded: FoldedJob, read_part: ReadPart) -> RecordedJob:
    """The job as it was submitted and expanded."""

    def content(sha256: str | None) -> bytes:
        if sha256 is None:
            raise UnreadableRecord("a part of the definition is not named", subject=f"job {record.job}")
        return read_part(sha256)

    def growth() -> Iterable[StageExpanded]:
        found = (msgspec.json.decode(data, type=StageExpanded) for data in folded.data_of("StageExpanded"))
        return list({each.stage: each for each in found}.values())

    row = folded.row
    try:
        return recall_job(
            row.job,
            definition=row.definition,
            lists=_texts(row.lists),
            late=row.late,
            content=content,
            growth=growth,
        )
    except (PilotageError, msgspec.DecodeError, TypeError, RecursionError) as fault:
        raise UnreadableRecord(f"the definition cannot be expanded: {fault}", subject=f"job {record.job}") from fault


def _texts(encoded: str) -> dict[str, str]:
    return msgspec.json.decode(encoded, type=dict[str, str])


def _chosen(definition: Definition) -> dict[str, str]:
    chosen = ((name, each.chosen) for name, each in definition.parameters.items())
    return {name: value for name, value in chosen if value is not None}


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What rows leave in the events of an attempt."""

    manifest: tuple[OutputFile, ...] | None = None
    phases: tuple[PhaseTimes, ...] = ()
    binaries: tuple[BinaryEnd, ...] = ()
    container_digest: str | None = None
    custom: str | None = None
    cores: tuple[OutputFile, ...] = ()


_outcome = msgspec.json.Decoder(_Outcome).decode
_NO_OUTCOME = _Outcome()


class _Opened:
    """The rows of a job and its expansion, from which packages are made."""

    def __init__(self, folded: FoldedJob, recorded: RecordedJob | None) -> None:
        self._folded = folded
        self._expansion = recorded.expansion if recorded is not None else None
        self._captured: Mapping[str, Captured] = recorded.origin.captured if recorded is not None else {}
        self._in_place = {
            file.name: file
            for data in folded.data_of("InputsDescribed")
            for file in msgspec.json.decode(data, type=InputsDescribed).files
        }
        self._shapes = {row.stage: shape_of(row.shape, stage=row.stage) for row in folded.stages}
        self._extra = folded.extra_places()
        self.count = sum(shape.count for shape in self._shapes.values()) + len(self._extra)
        self._manifest = lru_cache(maxsize=_MANIFESTS_MAX)(self._granted_manifest)

    def places(self) -> Iterator[PackageId]:
        shaped = (place for stage in sorted(self._shapes) for place in self._shapes[stage].after(None))
        return heapq.merge(shaped, self._extra)

    def has(self, place: PackageId) -> bool:
        shape = self._shapes.get(place.stage)
        return (shape is not None and shape.activity(place.line, place.number) is not None) or place in self._extra

    def package(self, place: PackageId) -> PackageHistory:
        facts = self._folded.facts(place)
        shape = self._shapes.get(place.stage)
        if facts is None:
            facts = PackageFacts(activity=(shape.activity(place.line, place.number) if shape is not None else "") or "")
            settle(facts, self._folded.row)
        found = PackageHistory(
            id=place.dotted,
            activity=facts.activity,
            state=facts.state,
            dropped=bool(facts.dropped),
            attempts=tuple(self._attempt(number, facts.attempts[number]) for number in sorted(facts.attempts)),
            granted_attempt=facts.attempt if facts.done_at is not None else None,
            tags=tags_of(facts.tags),
            reason=facts.reason,
            cause=facts.cause,
        )
        number = self._number(place)
        if number is None:
            return msgspec.structs.replace(found, files=_produced(place, found.granted))
        return self._written(found, number, started=bool(facts.started))

    def declared(self, number: int) -> tuple[Package, str]:
        assert self._expansion is not None
        block, position = self._expansion.locate(number)
        return block.package, block.tag(position)

    def _number(self, place: PackageId) -> int | None:
        layout = self._expansion.layouts.get(place.stage - 1) if self._expansion is not None else None
        return layout.number(place) if layout is not None else None

    def _attempt(self, number: int, facts: AttemptFacts) -> AttemptHistory:
        ended = self._outcome(facts.finished_position)
        staged = self._outcome(facts.staged_position) if facts.staged_position != facts.finished_position else ended
        is_over = facts.finished_at is not None or facts.granted_at is not None
        return AttemptHistory(
            number=number,
            epoch=facts.epoch,
            site=facts.site,
            pilot=facts.pilot,
            node=facts.node,
            native_id=facts.native_id,
            created_at=facts.created_at,
            queued_at=facts.queued_at,
            started_at=running_since(facts),
            ended_at=facts.finished_at if facts.finished_at is not None else facts.lost_at,
            granted=facts.granted_at is not None,
            granted_at=facts.granted_at,
            exit_code=facts.exit_code,
            exit_status=facts.exit_status,
            signal=facts.signal,
            reason=facts.reason if is_over else facts.lost_reason,
            message=facts.exit_message,
            phases=ended.phases,
            binaries=ended.binaries,
            container_digest=ended.container_digest,
            measured=Measured(**{name: getattr(facts, name) for name in Measured.__struct_fields__}),
            files=staged.manifest or (),
            custom=ended.custom,
            cores=ended.cores,
        )

    def _outcome(self, position: int | None) -> _Outcome:
        return _outcome(self._folded.data(position)) if position is not None else _NO_OUTCOME

    def _granted_manifest(self, number: int) -> tuple[OutputFile, ...] | None:
        """What a package made, by its number; None if no attempt was granted."""
        assert self._expansion is not None
        facts = self._folded.facts(self._expansion.id(number))
        if facts is None or facts.done_at is None or facts.attempt is None:
            return None
        attempt = facts.attempts[facts.attempt]
        for position in (attempt.staged_position, attempt.finished_position):
            if (manifest := self._outcome(position).manifest) is not None:
                return manifest
        return ()

    def _written(self, found: PackageHistory, number: int, *, started: bool) -> PackageHistory:
        """A package with what its definition says: names, commands, and the files that it read."""
        expansion = self._expansion
        assert expansion is not None
        before: list[int] = expansion.graph.predecessors(number).tolist()
        granted = [other for other in before if self._manifest(other) is not None]
        block, position = expansion.locate(number)
        left_out = left_out_names(expansion, number, granted)
        package = concrete(expansion, number, granted=granted, left_out=left_out, manifest_of=self._manifest)
        runs = started and not (package.declared.noop or package.declared.done)
        place = package.id
        consumed = self._consumed(package, block, granted) if runs else ()
        return msgspec.structs.replace(
            found,
            number=number,
            name=package.name,
            activity=found.activity or package.activity,
            stage=expansion.stage_names[block.stage],
            step=f"{block.stage + 1}.{block.template + 1}.{block.number + 1}",
            parameters=_iterated(block, position),
            commands=tuple(_commands(package)),
            container=package.container.image if package.container is not None else "",
            cores=package.declared.resources.cores,
            after=tuple(expansion.id(other).dotted for other in before),
            files=(*consumed, *_produced(place, found.granted)),
        )

    def _consumed(self, package: ConcretePackage, block: Block, granted: Iterable[int]) -> tuple[FileUse, ...]:
        """The files that a package read: its inputs, and the programs and scripts that came with the submission."""
        expansion = self._expansion
        assert expansion is not None
        made = {file.name: (maker, file) for maker in granted for file in self._manifest(maker) or ()}
        inside = open_patterns(package, block)
        locators = {
            name: locator
            for binary in package.binaries
            for given in binary.inputs
            for name, locator in zip(given.names, given.locators, strict=False)
        }
        brought = [n for binary in package.binaries for g in binary.inputs if is_brought(g.declared) for n in g.names]
        found: dict[str, FileUse] = {}
        for name in (*staged_names(package), *brought, *self._programs(package)):
            if name in found or any(matches(pattern, name) for pattern in inside):
                continue
            if name in made:
                maker, file = made[name]
                found[name] = FileUse(
                    name=name,
                    direction="consumed",
                    source="package",
                    package=expansion.id(maker).dotted,
                    size_bytes=file.size_bytes,
                    sha256=file.sha256,
                )
            else:
                found[name] = self._from_outside(name, locators.get(name, ""))
        return tuple(found.values())

    def _from_outside(self, name: str, locator: str) -> FileUse:
        captured = self._captured.get(name)
        if captured is None:
            known = self._in_place.get(name)
            return FileUse(
                name=name,
                direction="consumed",
                source="outside",
                size_bytes=known.size_bytes if known is not None else None,
                sha256=known.sha256 if known is not None else None,
                locator=locator,
                job=(known.job or "") if known is not None else "",
            )
        return FileUse(
            name=name,
            direction="consumed",
            source="captured" if captured.content else "outside",
            size_bytes=captured.size_bytes,
            sha256=captured.sha256,
            executable=captured.executable,
            locator=locator,
        )

    def _programs(self, package: ConcretePackage) -> Iterator[str]:
        """The files that came with the submission and that commands of a package name."""
        scripts = (package.scripts.pre, package.scripts.post)
        commands = [package.startup, *(binary.argv for binary in package.binaries)]
        commands += [script.run for script in scripts if script is not None]
        for argv in commands:
            for word in _words(argv):
                for part in (word, word.partition("=")[2]):
                    if part and (name := tidy_name(part)) in self._captured:
                        yield name


def _words(argv: tuple[str, ...]) -> Iterable[str]:
    return argv if argv[: len(SHELL)] != SHELL else shell_words(argv[len(SHELL)])


def _iterated(block: Block, position: int) -> dict[str, str | tuple[str, ...]]:
    values = block.values(position)
    return {name: values[name] for name in (*block.items.columns, *block.line_items.columns)}


def _commands(package: ConcretePackage) -> Iterator[Command]:
    if package.startup:
        yield Command(argv=package.startup)
    yield from map(_command, package.binaries)


def _command(binary: ConcreteBinary) -> Command:
    return Command(
        argv=binary.argv,
        name=binary.declared.name,
        software=binary.software,
        stdin=binary.stdin,
        stdout=binary.stdout,
        stderr=binary.stderr,
        environment=binary.environment.exported,
    )


def _produced(place: PackageId, granted: AttemptHistory | None) -> tuple[FileUse, ...]:
    return tuple(
        FileUse(
            name=file.name,
            direction="produced",
            source="package",
            package=place.dotted,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
        )
        for file in (granted.files if granted is not None else ())
    )
