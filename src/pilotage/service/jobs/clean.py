"""Finds and removes files of earlier runs that a document no longer makes.

A file is removed only if it is certain to be unused: it has the content that a run of this document was granted, no
other run made it since, the present document neither makes nor reads it and cannot make it, under whatever name, and
neither does an unfinished job, nor another document by its latest run or as it is in the folder. Files that failed
packages of a job read stay until the job is cleared, so that they can be retried.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from pilotage.book.query import EVERYTHING
from pilotage.book.rows.rows import JobRow
from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block, BlockColumns, bind
from pilotage.language.expansion.lists import Column
from pilotage.language.expansion.producers import PatternIndex, general_pattern, late_outputs
from pilotage.language.folder import CachedFile, EarlierOutputs
from pilotage.language.named_files import differing_of, output_column
from pilotage.language.parsing.iterations import sources
from pilotage.language.text.names import tidy_name, tidy_names
from pilotage.language.text.patterns import is_pattern, literal, matches
from pilotage.language.text.templates import Template, literal_text, parse_template, part_of_name, render, render_column
from pilotage.model.answers import CleanRequest, NotRemoved, ObsoleteFile, ObsoleteFiles, StayingFile, StaysFor
from pilotage.model.errors import PilotageError
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Noted
from pilotage.model.jobs.definition import Definition, InputFile, Parameter, Source
from pilotage.model.jobs.submission import Origin
from pilotage.model.states import FINAL_NAMES
from pilotage.model.texts import clipped
from pilotage.ports import Clock, JobTree, Journal, MadeFile, ResultsIndex, StoredFile, StoreError
from pilotage.service.jobs.resubmission import RetryInputs, inputs_to_retry, origin_of
from pilotage.service.jobs.submission import expansion_of, recall
from pilotage.service.works.documents_beside import documents_beside

# Which files a job makes and reads, by their names in its folder; including files whose names are not known in advance.

_ALL_STAGES = 1  # of an index in which everything is of stage 0


class FileUses:
    """The files of one job. In doubt, it uses a file."""

    def __init__(self, expansion: Expansion, brought: Collection[str] = ()) -> None:
        """Take the expansion of a job, and the names of the files that it brought along."""
        self._made: set[str] = set()
        self._made_like = PatternIndex()
        self._read: set[str] = {*brought}
        self._read_like = PatternIndex()
        for block in expansion.blocks:
            self._add_outputs(block)
            self._add_inputs(block)
        for names in expansion.resolved.lists.values():  # the files of its lists, whatever they are
            self._read.update(names)
        for block in (*expansion.blocks, *expansion.late_blocks):
            for each in differing_of(block, expansion.definition):
                self._read.update(each.names.values())
            self._add_image(block)
        for block in expansion.late_blocks:
            self._may_make(tidy_name(general_pattern(block.output_template(output))) for _, output in block.outputs())
            self._may_read(tidy_name(general_pattern(block.bound(given.name))) for given in _not_listed(block))
        for late in expansion.late:
            self._may_make(late_outputs(expansion.definition, late.stage - 1))
        for stage, source in _sources(expansion.definition):
            self._read.update(_written(name, expansion.definition) for name in (source.csv, source.lines) if name)
            if source.files and any(late.stage == stage for late in expansion.late):
                self._may_read([_written(source.files, expansion.definition)])

    def makes(self, name: str) -> bool:
        """Whether it makes a file of a known name."""
        return name in self._made

    def may_make(self, name: str) -> bool:
        """Whether it may make a file: by a pattern, by a regular expression, or in a stage that is not expanded yet."""
        return bool(self._made_like.makers_of(literal(name), before_stage=_ALL_STAGES))

    def reads(self, name: str) -> bool:
        """Whether it reads a file, or may: as an input, a list, a program or a script."""
        return name in self._read or bool(self._read_like.makers_of(literal(name), before_stage=_ALL_STAGES))

    def names_read(self) -> Collection[str]:
        """The known names of files that it reads; some may be list values that are not files."""
        return self._read

    def uses(self, name: str) -> bool:
        """Whether it makes or reads a file, or may."""
        return self.makes(name) or self.may_make(name) or self.reads(name)

    def _add_outputs(self, block: Block) -> None:
        for _, output in block.outputs():
            if block.makes_pattern(output):
                self._may_make(_patterns(block, block.output_template(output)))
            else:
                self._made.update(output_column(block, output))

    def _add_inputs(self, block: Block) -> None:
        for _, given in block.inputs():
            template = block.bound(given.name)
            lists = [each for each in template.placeholders if block.is_list(each.name)]
            if lists:
                column = block.column(lists[0].name)
                self._read.update(_listed(column, lists[0].attribute) if column is not None else ())
            elif is_pattern(literal_text(template)):
                # Outputs of other stages are theirs, and files on disk are in the lists; but not those a binary fetches
                # itself.
                self._may_read(_patterns(block, template) if _comes_by_itself(given) else ())
            elif template.placeholders:
                self._read.update(tidy_names(render_column(template, BlockColumns(block), block.count)))
            else:
                self._read.add(tidy_name(literal_text(template)))

    def _add_image(self, block: Block) -> None:
        if block.package.container is not None:  # an image that is not a file has no file name, either
            template = block.bound(block.package.container.image)
            if template.placeholders:
                self._may_read([tidy_name(general_pattern(template))])
            else:
                self._read.add(tidy_name(literal_text(template)))

    def _may_make(self, patterns: Collection[str] | Iterator[str]) -> None:
        self._made_like.add(((pattern, 0) for pattern in {*patterns}), stage=0)

    def _may_read(self, patterns: Collection[str] | Iterator[str]) -> None:
        # A pattern without text is the name of an item; the iteration says where items come from.
        self._read_like.add(((pattern, 0) for pattern in {*patterns} if pattern.strip("*")), stage=0)


def files_there(tree: JobTree, folder: str, names: Collection[str]) -> Iterator[StoredFile]:
    """The files of these names that can be examined; a file that cannot be is not read by anything."""
    try:
        yield from tree.look_up(folder, names).values()
    except StoreError:
        if len(names) > 1:
            for name in names:
                yield from files_there(tree, folder, [name])


def identity(file: StoredFile) -> tuple[int, int]:
    """The identity of a file under any name: a link has the same."""
    return file.inode, file.changed_ns


def name_in(root: str, *, folder: str, name: str) -> str:
    """The name of a file relative to another folder, above or below its own; empty if it is not inside."""
    path, beginning = f"{folder}/{name}", f"{root}/"
    return path[len(beginning) :] if path.startswith(beginning) else ""


def _patterns(block: Block, template: Template) -> list[str]:
    """A pattern with its placeholders filled in, for every package of a block."""
    if not template.placeholders:
        return [tidy_name(literal_text(template))]
    return [tidy_name(render(template, block.values(position), quote=literal)) for position in range(block.count)]


def _listed(column: Column, attribute: str) -> Iterator[str]:
    for group in column.values:
        yield from (tidy_name(part_of_name(value, attribute)) for value in group)


def _comes_by_itself(given: InputFile) -> bool:
    return given.acquisition == "self" or bool(given.locator)


def _not_listed(block: Block) -> Iterator[InputFile]:
    """The inputs of a block without packages that are no patterns: matches of patterns are in the lists."""
    for _, given in block.inputs():
        if _comes_by_itself(given) or not is_pattern(literal_text(block.bound(given.name))):
            yield given


def _sources(definition: Definition) -> Iterator[tuple[int, Source]]:
    """Every list that the stages (from 1) and lines of a job use."""
    for number, stage in enumerate(definition.stages, start=1):
        for iteration in (stage.each, *(line.each for line in stage.lines)):
            yield from ((number, source) for source in sources(iteration))


def _written(text: str, definition: Definition) -> str:
    """A name or pattern with the constants of a job filled in; other placeholders match anything."""
    template = bind(parse_template(text), definition.constants)
    return tidy_name(general_pattern(template) if template.placeholders else literal_text(template))


Learn = Callable[[str], bool]
"""Updates the index from the book with the files of a folder that pilotage made."""
AtWork = Callable[[str], "tuple[Expansion, Collection[str]] | None"]
"""The expansion of an active job, and the files that it brought along; None if it is not active."""

_ROWS_AT_ONCE = 1000
_NAMED_MAX = 5
_USES = "makes or reads it"
_NAMELESS = frozenset({"", "-"})  # documents that are not files: from Python, or from standard input


def clean(
    request: CleanRequest,
    *,
    journal: Journal,
    tree: JobTree,
    index: ResultsIndex,
    learn: Learn,
    unfinished: Collection[str] = (),
    at_work: AtWork = lambda _: None,
) -> ObsoleteFiles:
    """Find the files that a document no longer makes, and remove those requested. No job may be submitted meanwhile.

    `unfinished` are further unfinished jobs that the book does not show as such. Raises `DocumentError`, and
    `StoreError` if files cannot be examined; files that cannot be removed are reported.
    """
    made = _made(index, request.submission.folder, learn)
    search = _Search(request, journal=journal, tree=tree, index=index, unfinished=unfinished, at_work=at_work)
    found = search.obsolete(made)
    if not request.remove:
        return found
    removed: list[str] = []
    failed: list[NotRemoved] = []
    for file in found.files:
        if request.remove.get(file.name) != file.sha256:
            continue
        try:
            if tree.remove(found.folder, file.name, sha256=file.sha256):
                removed.append(file.name)
            else:
                failed.append(NotRemoved(name=file.name, message="it has just been changed"))
        except StoreError as fault:
            failed.append(NotRemoved(name=file.name, message=fault.what))
    folders = tree.remove_empty(found.folder, removed)
    return msgspec.structs.replace(found, removed=tuple(removed), folders=tuple(folders), not_removed=tuple(failed))


def removal_notes(found: ObsoleteFiles, *, journal: Journal, clock: Clock) -> list[Event]:
    """Events that record removed files: one for each job that made some of them and is not sealed."""
    removed = {*found.removed}
    by_job: dict[str, list[str]] = {}
    for file in found.files:
        if file.name in removed:
            by_job.setdefault(file.job, []).append(file.name)
    stream = f"clean-{secrets.token_hex(6)}"  # a stream of its own
    notes: list[Event] = []
    for job, names in sorted(by_job.items()):
        row = journal.job(job)
        if row is None or row.place != "live":
            continue  # an event would unseal it
        more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
        count = "1 file" if len(names) == 1 else f"{len(names):,} files"
        text = (
            f"pilotage clean removed {count} that its document no longer makes: {', '.join(names[:_NAMED_MAX])}{more}"
        )
        notes.append(
            Event(
                source="service",
                stream=stream,
                n=len(notes) + 1,
                type="Noted",
                time=clock.now(),
                epoch=row.epoch,
                seen=journal.position(),
                job=job,
                data=msgspec.Raw(msgspec.json.encode(Noted(text=clipped(text, 1000)))),
            )
        )
    return notes


def _made(index: ResultsIndex, folder: str, learn: Learn) -> Iterator[tuple[str, dict[str, MadeFile]]]:
    """The names of all outputs made, each with its contents by checksum."""
    learn(folder)
    for name, files in groupby(index.made_files(folder), key=lambda made: made.file.name):
        yield name, {made.file.sha256: made for made in files}


class _User(NamedTuple):
    """A job, or another document, whose files stay: its folder, and the files it uses; None: unknown, so all."""

    folder: str
    uses: FileUses | RetryInputs | None
    reason: StaysFor
    message: str


class _Search:
    """Searches the outputs made in a folder."""

    def __init__(
        self,
        request: CleanRequest,
        *,
        journal: Journal,
        tree: JobTree,
        index: ResultsIndex,
        unfinished: Collection[str],
        at_work: AtWork,
    ) -> None:
        submission = request.submission
        self._submission = submission
        self._folder = submission.folder
        self._journal = journal
        self._tree = tree
        self._index = index
        self._at_work = at_work
        expansion = expansion_of(submission)
        self._definition = expansion.definition
        self._now = FileUses(expansion, [*submission.captured, *request.read, submission.document])
        self._rows = {row.job: row for row in _rows(journal)}
        self._origins = {job: origin_of(journal, row) for job, row in self._rows.items() if row.place != "purged"}
        self._unfinished = {
            job
            for job, origin in self._origins.items()
            if origin is not None and (job in unfinished or self._rows[job].state not in FINAL_NAMES)
        }
        self._documents: dict[tuple[str, str], bool] = {}  # by folder and name: whether the document exists
        self._mine = self._runs_of_document()
        self._by_parameters: dict[tuple[tuple[str, str], ...], frozenset[str]] = {}
        self._links: dict[tuple[int, int], tuple[StaysFor, str]] | None = None

    def obsolete(self, made: Iterator[tuple[str, dict[str, MadeFile]]]) -> ObsoleteFiles:
        """The files that can be removed, and those that stay."""
        wanted = {
            name: contents
            for name, contents in made
            if not self._now.makes(name) and any(each.job in self._mine for each in contents.values())
        }
        there = self._tree.look_up(self._folder, wanted) if wanted else {}
        users = self._users() if there else []
        files: list[ObsoleteFile] = []
        kept: list[StayingFile] = []
        maybe_made = 0
        for name in sorted(there):
            if self._now.may_make(name):
                maybe_made += 1
                continue
            examined = self._examined(there[name], wanted[name], users)
            if isinstance(examined, StayingFile):
                kept.append(examined)
            else:
                files.append(examined)
        used = self._used_by_documents(files)
        kept += used.values()
        return ObsoleteFiles(
            job=self._definition.job,
            folder=self._folder,
            files=tuple(file for file in files if file.name not in used),
            kept=tuple(sorted(kept, key=lambda each: each.name)),
            maybe_made=maybe_made,
        )

    def _used_by_documents(self, files: Sequence[ObsoleteFile]) -> dict[str, StayingFile]:
        """The files that other documents of the folder make or read as they are now: some have no run of their own.

        One got another name since it was run, and of another everything was there already when it was.
        """
        found: dict[str, StayingFile] = {}
        for document, loaded in documents_beside(self._folder, self._submission.document, jobs=self) if files else ():
            uses = FileUses(loaded.expansion, [*loaded.files_read, document])
            for name in (file.name for file in files if file.name not in found and uses.uses(file.name)):
                found[name] = StayingFile(name=name, reason="other-document", message=f"{document} {_USES}")
        return found

    def outputs(self, job: str, pattern: str) -> EarlierOutputs | None:
        """The outputs of a finished job, by its id or its name: documents beside this one may iterate over them."""
        named = (row for row in self._rows.values() if row.name == job and row.state in ("DONE", "CLEARED"))
        row = self._rows.get(job) or max(named, key=lambda each: each.submitted_at or 0.0, default=None)
        origin = self._origins.get(row.job) if row is not None else None
        if row is None or origin is None:
            return None
        made = (each.file.name for each in self._index.made_files(origin.folder) if each.job == row.job)
        names = (name_in(self._folder, folder=origin.folder, name=name) for name in made)
        return EarlierOutputs(row.job, sorted({name for name in names if name and matches(pattern, name)}))

    def cached_files(self, site: str) -> list[CachedFile] | None:
        """Empty: files in the caches of sites are no files of the folder."""
        return []

    def _examined(
        self, there: StoredFile, contents: Mapping[str, MadeFile], users: Collection[_User]
    ) -> ObsoleteFile | StayingFile:
        name = there.name

        def kept(reason: StaysFor, message: str) -> StayingFile:
            return StayingFile(name=name, reason=reason, message=message)

        if self._tree.is_linked(self._folder, name):
            return kept("link", "it is a link, or in a linked folder")
        sizes = {each.file.size_bytes for each in contents.values()}
        sha256 = self._tree.checksum(self._folder, name) if there.size_bytes in sizes else None
        made = contents.get(sha256 or "")
        if made is None or sha256 is None:
            return kept("changed", "it was changed since it was made")
        if made.job in self._unfinished:
            return kept("unfinished-job", f"the unfinished job {made.job} made it")
        for user in users:
            inner = name_in(user.folder, folder=self._folder, name=name)
            if inner and (user.uses is None or user.uses.uses(inner)):
                return kept(user.reason, user.message)
        if made.job not in self._mine:
            return kept("other-document", f"the job {made.job or 'of another document'} made it last")
        if self._now.reads(name):
            return kept("document", "the document reads it")
        if other := self._made_with_others(name, made.job):
            return kept("parameters", f"the document makes it with {other}")
        if reader := self._readers_by_link(users).get(identity(there)):
            return kept(*reader)
        return ObsoleteFile(
            name=name,
            size_bytes=there.size_bytes,
            sha256=sha256,
            modified_at=there.modified_ns / 1e9,
            job=made.job,
        )

    # --- whose it is ---

    def _runs_of_document(self) -> set[str]:
        """The runs of the document: from a file of its name, or of the same job name if that file is gone.

        Of purged jobs only the job name is left: it decides, unless another document has the same.
        """
        submission, name = self._submission, self._definition.job
        found: set[str] = set()
        others: set[str] = set()
        for job, origin in self._origins.items():
            row = self._rows[job]
            if origin is None or origin.folder != submission.folder:
                continue
            if row.owner == submission.owner and self._is_run_of_document(row, origin):
                found.add(job)
            else:
                others.add(row.name)
        if name not in others:
            found |= {
                row.job
                for row in self._rows.values()
                if row.place == "purged" and (row.name, row.owner) == (name, submission.owner)
            }
        return found

    def _is_run_of_document(self, row: JobRow, origin: Origin) -> bool:
        same_name = row.name == self._definition.job
        if origin.document == self._submission.document:
            return same_name or origin.document not in _NAMELESS
        return same_name and origin.document not in _NAMELESS and not self._is_there(origin)

    def _is_there(self, origin: Origin) -> bool:
        """Whether the document of a job still exists under its name."""
        key = (origin.folder, origin.document)
        if key not in self._documents:
            try:
                self._documents[key] = bool(self._tree.look_up(origin.folder, [origin.document]))
            except StoreError:  # it cannot be examined: in doubt it exists
                self._documents[key] = True
        return self._documents[key]

    # --- other users of a file ---

    def _users(self) -> list[_User]:
        """The unfinished jobs, those that can be retried, and the latest runs of the other documents.

        In this folder and those around it, and of the same user anywhere: links may lead here.
        """
        found: list[_User] = []
        latest: dict[tuple[str, str], JobRow] = {}
        for job, origin in self._origins.items():
            row = self._rows[job]
            if origin is None:
                continue
            if row.owner != self._submission.owner and not _are_nested(origin.folder, self._folder):
                continue
            if job in self._unfinished:
                message = f"the unfinished job {job} {_USES}"
                found.append(_User(origin.folder, self._uses_of(row), "unfinished-job", message))
                continue
            if _can_be_retried(row) and (inputs := self._inputs_to_retry(row)) is not None:
                message = f"the job {job}, which failed and can be retried, {_USES}"
                found.append(_User(origin.folder, inputs, "unfinished-job", message))
            if job not in self._mine and origin.document not in _NAMELESS and self._is_there(origin):
                key = (origin.folder, origin.document)
                if key not in latest or (row.submitted_at or 0.0) >= (latest[key].submitted_at or 0.0):
                    latest[key] = row
        for (folder, document), row in latest.items():
            if (uses := self._uses_of(row)) is not None:
                shown = name_in(self._folder, folder=folder, name=document) or f"{folder}/{document}"
                found.append(_User(folder, uses, "other-document", f"{shown} {_USES}"))
        return found

    def _inputs_to_retry(self, row: JobRow) -> FileUses | RetryInputs | None:
        """The inputs of the failed packages of a job; None if the job can no longer be expanded and retried."""
        try:
            expansion = recall(self._journal, row).expansion
        except PilotageError:
            return None
        if expansion.late:  # over which files its late stages will be laid out is not known
            return FileUses(expansion)
        return inputs_to_retry(expansion, self._journal.finals(row))

    def _uses_of(self, row: JobRow) -> FileUses | None:
        known = self._at_work(row.job) if row.job in self._unfinished else None
        try:
            if known is None:
                recalled = recall(self._journal, row)
                known = recalled.expansion, recalled.origin.captured
        except PilotageError:
            return None
        expansion, captured = known
        origin = self._origins[row.job]
        return FileUses(expansion, captured if origin is None else [*captured, origin.document])

    def _readers_by_link(self, users: Collection[_User]) -> Mapping[tuple[int, int], tuple[StaysFor, str]]:
        """Which job reads a file, by the file's identity: another name may lead to it, through a link."""
        if self._links is None:
            own = _User(self._folder, self._now, "document", f"the document {_USES}")
            self._links = {}
            for user in (*users, own):
                names = user.uses.names_read() if user.uses is not None else ()
                who = user.message.removesuffix(_USES)
                for file in files_there(self._tree, user.folder, names):
                    self._links[identity(file)] = (user.reason, f"{who}reads {file.name}, which is the same file")
        return self._links

    # --- parameters ---

    def _made_with_others(self, name: str, job: str) -> str:
        """The parameters of a run that differ from the present ones, if the document makes this file with them."""
        now, chosen = self._definition.parameters, self._chosen(job)
        other = tuple(
            (each, value) for each, value in sorted(chosen.items()) if each in now and now[each].chosen != value
        )
        if not other:
            return ""
        if other not in self._by_parameters:
            replace = msgspec.structs.replace
            parameters = {**now, **{each: replace(now[each], value=value) for each, value in other}}
            then = _names_made(replace(self._definition, parameters=parameters))
            self._by_parameters[other] = then - _names_made(self._definition)
        if not any(matches(pattern, name) for pattern in self._by_parameters[other]):
            return ""
        return ", ".join(f"{each}={value}" for each, value in other)

    def _chosen(self, job: str) -> dict[str, str]:
        """The parameters of a job."""
        row = self._rows[job]
        content = self._journal.content(row.definition) if row.definition else None
        if content is None:
            return {}
        parameters = msgspec.json.decode(content, type=_Parameters).parameters
        return {name: each.chosen for name, each in parameters.items() if each.chosen is not None}


def _can_be_retried(row: JobRow) -> bool:
    """Whether a job is over with packages that failed, and was neither killed nor cleared."""
    return row.place == "live" and row.state in ("DONE", "ABORTED") and row.failed > 0


class _Parameters(msgspec.Struct, frozen=True):
    parameters: dict[str, Parameter] = {}


def _names_made(definition: Definition) -> frozenset[str]:
    """Patterns of all outputs of a document, whatever it iterates over."""
    return frozenset(name for stage in range(len(definition.stages)) for name in late_outputs(definition, stage))


def _rows(journal: Journal) -> Iterator[JobRow]:
    after: str | None = None
    while True:
        page = journal.find_jobs(EVERYTHING, after=after, limit=_ROWS_AT_ONCE)
        yield from page.items
        if not page.more:
            return
        after = page.scanned_to if page.scanned_to is not None else page.items[-1].job


def _are_nested(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
