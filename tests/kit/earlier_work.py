"""What tests of submissions share: a folder with its state, and jobs that are run by hand, without agents."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.stores.folder_tree import FolderTree
from pilotage.adapters.stores.logs import SqliteLogs
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.language import DiskFolder, load
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import Assignment, AttemptRef, InputSource, Work
from pilotage.model.jobs.submission import Submission, submission_of
from pilotage.ports import MadeWork
from pilotage.service.jobs.submission import Prepared, prepare
from pilotage.service.works.capture import DiskFiles, capture
from pilotage.service.works.reuse import completed, fields_of, key_of
from pilotage.service.works.site_files import CachedInput, contents_of
from pilotage.service.works.work_orders import compose, compose_every_way
from tests.kit.sqlite_books import opened


class Place:
    """A document's folder with a journal, an index, logs and a tree."""

    def __init__(self, folder: Path, journal: SqliteJournal, index: SqliteResultsIndex, logs: SqliteLogs) -> None:
        """Made by `place`."""
        self.folder = folder
        self.journal = journal
        self.index = index
        self.logs = logs
        self.tree = FolderTree(folder / ".pilotage", index)
        self.ran: list[str] = []  # the names of packages, in order
        self.contents: dict[str, CachedInput] = {}  # of files at sites, by locator

    def write(self, **files: str) -> None:
        """Put files into the folder; `_` in a name stands for a dot."""
        for name, text in files.items():
            (self.folder / name.replace("_", ".")).write_text(text)

    def submission(self, text: str, **more: Any) -> Submission:
        """A document as it is submitted from the folder."""
        loaded = load(text.encode(), file="job.yaml", folder=DiskFolder(self.folder)).job()
        captured = capture(loaded.expansion, DiskFiles(self.folder), self.journal.put_content)
        return submission_of(
            loaded.definition,
            loaded.expansion.resolved,
            folder=str(self.folder),
            document="job.yaml",
            captured=captured,
            **more,
        )

    def prepare(self, text: str, **more: Any) -> Prepared:
        """A document submitted from the folder."""
        submission = self.submission(text, **more)
        return prepare(
            submission, journal=self.journal, tree=self.tree, index=self.index, owner="ada", contents=self._contents
        )

    def _contents(self, _: Collection[str]) -> Mapping[str, CachedInput]:
        return self.contents

    def run(self, text: str, *, failing: Collection[str] = (), **more: Any) -> list[str]:
        """Run a document by hand; the names of the packages that were run, without those that fail and what follows."""
        prepared = self.prepare(text, **more)
        expansion = prepared.expansion
        granted: dict[int, tuple[OutputFile, ...]] = {each.number: each.manifest for each in prepared.adopted}
        files = contents_of(prepared.plan, self._contents)
        ran: list[str] = []
        order = expansion.graph.order()
        assert order is not None
        for number in order.tolist():
            producers = expansion.graph.predecessors(number).tolist()
            name = expansion.name(number)
            if number in granted or name in failing or any(producer not in granted for producer in producers):
                continue
            ref = AttemptRef(prepared.job, expansion.id(number).dotted, 1)
            inputs = tuple(InputSource(expansion.id(each).dotted, 1) for each in producers)
            staged = self.tree.staged_folder(str(self.folder), prepared.job)
            assignment = Assignment(ref=ref, inputs=inputs)
            work = compose(
                expansion, number, assignment, prepared.origin, staged=staged, manifest_of=granted.get, files=files
            )
            every = compose_every_way(
                expansion, number, assignment, prepared.origin, manifest_of=granted.get, files=files
            )
            granted[number] = self._made(work, every, ref, prepared)
            ran.append(name)
        return ran

    def _made(self, work: Work, every: Sequence[Work], ref: AttemptRef, prepared: Prepared) -> tuple[OutputFile, ...]:
        """Pretend that a work ran: what it makes follows from its commands and the content of its inputs."""
        fields = completed(fields_of(*every), lambda name: self.tree.checksum(str(self.folder), name))
        assert fields is not None
        data = key_of(fields).encode()
        names = sorted(
            output.name.replace("*", str(n)) or f"{output.folder}/x"
            for binary in work.binaries
            for output in binary.outputs
            for n in range(2 if output.pattern else 1)
        )
        manifest = tuple(
            OutputFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for name in names
        )
        for number in range(len(names)):
            self.tree.write_staged(str(self.folder), ref, number=number, offset=0, data=data)
        made = MadeWork(
            key=key_of(fields),
            fields=fields,
            folder=str(self.folder),
            document=prepared.registered.name,
            ref=ref,
            manifest=manifest,
        )
        self.index.keep([made])
        self.tree.publish(str(self.folder), ref, manifest)
        return manifest


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """A folder to submit from."""
    state = folder / ".pilotage"
    database = WorkDatabase(state)
    index, logs = SqliteResultsIndex(database), SqliteLogs(database)
    try:
        with opened(state) as journal:
            yield Place(folder, journal, index, logs)
    finally:
        index.close()
        logs.close()
