"""What a document no longer makes: which files are found, and which stay, and why."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.language import DiskFolder, load
from pilotage.model.answers import CleanRequest, ObsoleteFiles
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import OutputFile
from pilotage.model.jobs.submission import Submission, submission_of
from pilotage.service.jobs.clean import clean, removal_notes
from pilotage.service.jobs.output_claims import GrantedFiles
from pilotage.service.jobs.submission import prepare
from pilotage.service.works.capture import DiskFiles, capture
from pilotage.service.works.documents_beside import names_beside
from tests.kit.earlier_work import Place, place
from tests.kit.served_book import WallClock
from tests.kit.sqlite_books import keep

HEAD = "pilotage: 1\njob: j\nstages:\n"
OLD = HEAD + "  - {run: make old, outputs: [a.dat, sub/old.dat]}\n"
NEW = HEAD + "  - {run: make new, outputs: [a.dat]}\n"


class Folder:
    """A folder in which documents are run by hand, and cleaned."""

    def __init__(self, here: Place) -> None:
        self.here = here
        self.path = here.folder
        self._n = 0
        self._learn = GrantedFiles(here.journal, here.index).learn

    def submission(self, text: str, *, document: str = "job.yaml", owner: str = "ada", **given: Any) -> Submission:
        (self.path / document).write_text(text)
        loaded = load(text.encode(), file=document, folder=DiskFolder(self.path), **given).job()
        captured = capture(loaded.expansion, DiskFiles(self.path), self.here.journal.put_content)
        return submission_of(
            loaded.definition,
            loaded.expansion.resolved,
            folder=str(self.path),
            document=document,
            captured=captured,
            owner=owner,
        )

    def ran(self, text: str, *, over: bool = True, content: str = "", failed: tuple[str, ...] = (), **more: Any) -> str:
        """Run a document: what it makes is granted, unless it is not `over`; but for packages that failed; the job."""
        here, submission = self.here, self.submission(text, **more)
        made = prepare(submission, journal=here.journal, tree=here.tree, index=here.index, owner=submission.owner)
        self.say(made.job, "JobRegistered", made.registered)
        for number in range(made.expansion.count):
            package = made.expansion.id(number).dotted
            if package in failed:
                self.say(made.job, "Aborted", {"cause": "retries-exhausted"}, package=package, attempt=None)
                continue
            files = [self._written(name.replace("*", "1"), content) for name in made.expansion.outputs(number)]
            self.say(made.job, "AttemptCreated", {"site": "local"}, package=package)
            self.say(made.job, "AttemptFinished", {"exit_code": "SUCCESS", "manifest": files}, package=package)
            if over or number < made.expansion.count - 1:
                self.say(made.job, "CommitGranted", {}, package=package)
        return made.job

    def _written(self, name: str, content: str) -> OutputFile:
        data = (content or name).encode()
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(data)
        return OutputFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def say(self, job: str, kind: str, data: Any, *, package: str | None = None, attempt: int | None = 1) -> None:
        self._n += 1
        event = Event(
            source="agent" if kind == "AttemptFinished" else "service", stream="s", n=self._n, type=kind,
            time=float(self._n), job=job, package=package, attempt=None if package is None else attempt,
            data=msgspec.Raw(msgspec.json.encode(data)),
        )  # fmt: skip
        keep(self.here.journal, [event])

    def found(
        self, text: str, *, read: tuple[str, ...] = (), remove: dict[str, str] | None = None, **more: Any
    ) -> ObsoleteFiles:
        request = CleanRequest(submission=self.submission(text, **more), read=read, remove=remove or {})
        here = self.here
        return clean(request, journal=here.journal, tree=here.tree, index=here.index, learn=self._learn)

    def removed(self, text: str, **more: Any) -> ObsoleteFiles:
        shown = self.found(text, **more)
        return self.found(text, remove={file.name: file.sha256 for file in shown.files}, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with place(Path(os.path.realpath(tmp_path))) as made:
        yield Folder(made)


def names(found: ObsoleteFiles) -> list[str]:
    return [file.name for file in found.files]


def kept(found: ObsoleteFiles) -> dict[str, str]:
    return {file.name: file.reason for file in found.kept}


def test_what_the_document_no_longer_makes_is_found_with_who_made_it(folder: Folder) -> None:
    job = folder.ran(OLD)
    found = folder.found(NEW)
    (file,) = found.files
    assert (file.name, file.size_bytes, file.job) == ("sub/old.dat", 11, job)
    assert file.modified_at == pytest.approx((folder.path / "sub/old.dat").stat().st_mtime)
    assert found.removed == ()
    assert (folder.path / "sub/old.dat").exists()
    assert names(folder.found(OLD)) == []


def test_only_what_was_shown_is_removed_with_the_folders_that_are_left_empty(folder: Folder) -> None:
    job = folder.ran(OLD)
    assert folder.found(NEW, remove={"sub/old.dat": "0" * 64, "a.dat": "0" * 64}).removed == ()
    done = folder.removed(NEW)
    assert (done.removed, done.folders, done.not_removed) == (("sub/old.dat",), ("sub",), ())
    assert not (folder.path / "sub").exists()
    assert (folder.path / "a.dat").exists()
    assert names(folder.found(NEW)) == []
    (note,) = removal_notes(done, journal=folder.here.journal, clock=WallClock())
    assert (note.job, note.type) == (job, "Noted")
    assert b"pilotage clean removed 1 file that its document no longer makes: sub/old.dat" in bytes(note.data)


def test_a_file_that_somebody_changed_or_linked_stays(folder: Folder) -> None:
    folder.ran(HEAD + "  - {run: make, outputs: [same, longer, link, dir/inner]}\n")
    (folder.path / "same").write_text("emas")  # of the same size
    (folder.path / "longer").write_text("something else")
    (folder.path / "link").rename(folder.path / "elsewhere")
    (folder.path / "link").symlink_to("elsewhere")
    (folder.path / "dir").rename(folder.path / "real")
    (folder.path / "dir").symlink_to("real")
    found = folder.removed(NEW)
    assert found.files == ()
    assert kept(found) == {"same": "changed", "longer": "changed", "link": "link", "dir/inner": "link"}
    assert (folder.path / "real/inner").exists()


def test_what_the_document_may_make_is_counted_and_stays(folder: Folder) -> None:
    folder.ran(HEAD + "  - {run: make, outputs: [p-1, q-1, d/r, s-1.out, gone]}\n")
    new = HEAD + (
        "  - {run: make, outputs: ['p-*', {expression: '.*', folder: d}]}\n"
        "  - {each: {f: 'p-*'}, run: 'use {f}', inputs: ['{f}'], outputs: ['s-{f.stem}.out']}\n"
    )
    found = folder.found(new)
    assert names(found) == ["gone", "q-1"]
    assert found.maybe_made == 3


def test_what_the_document_reads_or_runs_stays(folder: Folder) -> None:
    old = "in.dat, list.txt, listed.dat, tool.sh, glob/1.dat, table.csv, descriptor.json, later-x.cal, box.sif, late-1.sif, gone"
    folder.ran(HEAD + f"  - {{run: make, outputs: [{old}]}}\n")
    (folder.path / "listed.dat").write_text("listed.dat")
    new = HEAD + (
        "  - {run: [./tool.sh, one], container: box.sif, inputs: [in.dat], outputs: [one]}\n"
        "  - {each: {g: 'glob/*.dat'}, run: 'use {g}', container: 'late-{g.stem}.sif', inputs: ['{g}'], outputs: ['{g.stem}.out']}\n"
        "  - {each: {l: {lines: list.txt}}, run: 'use {l}', outputs: ['{l}.out']}\n"
        "  - {run: make, outputs: ['x-*']}\n"
        "  - {each: {x: 'x-*'}, run: 'use {x}', inputs: ['{x}', 'later-{x.suffix}x.cal'], outputs: ['{x}.late']}\n"
    )
    found = folder.found(new, read=("descriptor.json",))
    assert names(found) == ["gone", "listed.dat", "table.csv"]
    read = "in.dat, list.txt, tool.sh, glob/1.dat, descriptor.json, later-x.cal, box.sif, late-1.sif"
    assert {*kept(found)} == {*read.split(", ")}
    assert {*kept(found).values()} == {"document"}


def test_an_input_that_is_a_pattern_does_not_keep_what_no_stage_makes_any_more(folder: Folder) -> None:
    sweep = HEAD + (
        "  - {{each: {{n: 1..{n}}}, run: 'make {{n}}', outputs: ['part-{{n}}']}}\n"
        "  - {{run: sum, inputs: ['part-*'], outputs: [sum]}}\n"
    )
    folder.ran(sweep.format(n=3))
    assert names(folder.found(sweep.format(n=2))) == ["part-3"]


def test_what_a_job_that_is_not_over_makes_or_reads_stays(folder: Folder) -> None:
    folder.ran(HEAD + "  - {run: make, outputs: [in.dat, out.dat, gone]}\n")
    (folder.path / "out.dat").unlink()
    job = folder.ran(
        HEAD + "  - {run: use, inputs: [in.dat], outputs: [mid.dat, out.dat]}\n  - {run: last}\n", over=False
    )
    found = folder.found(NEW)
    assert names(found) == ["gone"]
    assert kept(found) == dict.fromkeys(("in.dat", "mid.dat", "out.dat"), "unfinished-job")
    assert found.kept[0].message == f"the unfinished job {job} makes or reads it"


PARTS = HEAD + (
    "  - {{each: {{n: 1..{n}}}, run: 'make {{n}}', outputs: ['part-{{n}}']}}\n"
    "  - {{each: {{n: 1..{n}}}, run: 'use {{n}}', inputs: ['part-{{n}}'], outputs: ['out-{{n}}']}}\n"
)
SUM = HEAD + (
    "  - {{each: {{n: 1..{n}}}, run: 'make {{n}}', outputs: ['part-{{n}}']}}\n"
    "  - {{run: sum, inputs: ['part-*'], outputs: [sum]}}\n"
)


def test_what_failed_packages_read_stays_until_the_job_is_cleared(folder: Folder) -> None:
    job = folder.ran(PARTS.format(n=3), failed=("2.3.1",))
    found = folder.removed(PARTS.format(n=1))
    assert found.removed == ("out-2", "part-2")
    assert [(each.name, each.reason, each.message) for each in found.kept] == [
        ("part-3", "unfinished-job", f"the job {job}, which failed and can be retried, makes or reads it")
    ]
    assert (folder.path / "part-3").exists()
    folder.say(job, "Cleared", {"by": "user"})
    assert names(folder.found(PARTS.format(n=1))) == ["part-3"]


@pytest.mark.parametrize("document", ["job.yaml", "other.yaml"])
def test_what_a_failed_package_reads_by_a_pattern_stays_whichever_document_it_is_of(
    folder: Folder, document: str
) -> None:
    job = folder.ran(SUM.format(n=3), failed=("2.1.1",), document=document)
    if document != "job.yaml":
        (folder.path / document).unlink()
    found = folder.found(SUM.format(n=1))
    assert kept(found) == dict.fromkeys(("part-2", "part-3"), "unfinished-job")
    folder.say(job, "CancelAccepted", {})  # by who does not want it any more
    assert names(folder.found(SUM.format(n=1))) == ["part-2", "part-3"]


def test_a_late_stage_of_a_failed_job_may_read_whatever_was_made_for_it(folder: Folder) -> None:
    late = HEAD + (
        "  - {{run: make, outputs: ['{made}-*']}}\n  - {{run: make, outputs: ['{made}-*']}}\n"
        "  - {{each: {{f: '{made}-*'}}, run: 'use {{f}}', inputs: ['{{f}}'], outputs: ['{{f}}.out']}}\n"
    )
    job = folder.ran(late.format(made="old"), failed=("2.1.1",))
    folder.say(job, "Aborted", {"cause": "abort-on"})
    assert kept(folder.found(late.format(made="new"))) == {"old-1": "unfinished-job"}


OTHER = "pilotage: 1\njob: other\nstages:\n  - {{{}}}\n"


@pytest.mark.parametrize(
    "stage",
    [
        "run: make, outputs: [sub/old.dat]",
        "run: use, inputs: [sub/old.dat], outputs: [x]",
        "each: {f: {files: 'sub/*', job: j}}, run: 'use {f}', outputs: ['{f.stem}.x']",
    ],
)
def test_what_a_document_beside_uses_stays_although_it_was_never_run(folder: Folder, stage: str) -> None:
    folder.ran(OLD)
    shown = folder.found(NEW)
    assert names(shown) == ["sub/old.dat"]
    (folder.path / "other.yml").write_text(OTHER.format(stage))
    done = folder.found(NEW, remove={file.name: file.sha256 for file in shown.files})
    assert (done.removed, done.files) == ((), ())
    assert [(each.name, each.reason, each.message) for each in done.kept] == [
        ("sub/old.dat", "other-document", "other.yml makes or reads it")
    ]
    (folder.path / "other.yml").write_text("pilotage: 1\nstages: nonsense\n")  # it cannot be run as it is
    assert names(folder.found(NEW)) == ["sub/old.dat"]


def test_only_readable_documents_of_ours_stand_beside_the_one_that_is_cleaned(tmp_path: Path) -> None:
    for name, text in {
        "pilotage.yaml": "pilotage: 1\n",
        "other.yml": "pilotage: 1\n",
        "more.yaml": "# one more\npilotage: 1\n",
        "notes.yaml": "something: else\n",
        "notes.txt": "pilotage: 1\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.yaml").mkdir()
    assert list(names_beside(str(tmp_path), "pilotage.yaml")) == ["more.yaml", "other.yml"]
    assert list(names_beside(str(tmp_path / "gone"), "pilotage.yaml")) == []


def test_a_job_of_a_folder_above_or_below_counts_as_well(folder: Folder, tmp_path: Path) -> None:
    folder.ran(OLD)
    (folder.path / "sub").mkdir(exist_ok=True)
    below = Folder(folder.here)
    below.path = folder.path / "sub"
    below._n = 1000
    below.ran(HEAD + "  - {run: use, inputs: [old.dat], outputs: [x]}\n", over=False)
    assert kept(folder.found(NEW)) == {"sub/old.dat": "unfinished-job"}


def test_what_another_document_made_last_or_reads_stays(folder: Folder) -> None:
    folder.ran(HEAD + "  - {run: make, outputs: [shared, read, gone]}\n")
    other = "pilotage: 1\njob: other\nstages:\n  - {run: make it, inputs: [read], outputs: [shared, own]}\n"
    (folder.path / "shared").unlink()
    folder.ran(other, document="other.yaml", content="another")
    found = folder.found(NEW)
    assert names(found) == ["gone"]
    assert kept(found) == {"read": "other-document", "shared": "other-document"}
    assert {each.message for each in found.kept} == {"other.yaml makes or reads it"}
    # A document that is gone reads nothing any more; what it made last is still its own.
    (folder.path / "other.yaml").unlink()
    found = folder.found(NEW)
    assert (names(found), {*kept(found)}) == (["gone", "read"], {"shared"})


def test_what_is_read_through_a_link_stays(folder: Folder) -> None:
    folder.ran(HEAD + "  - {run: make, outputs: [sub/one, sub/two, sub/three, sub/four, sub/gone]}\n")
    for link, target in (("one", "sub/one"), ("all", "sub"), ("three", "sub/three")):
        (folder.path / link).symlink_to(target)
    other = "pilotage: 1\njob: other\nstages:\n  - {run: use it, inputs: [three], outputs: [own]}\n"
    folder.ran(other, document="other{.yaml")
    beside = Folder(folder.here)
    beside.path = folder.path.parent / "beside"
    beside.path.mkdir()
    beside._n = 1000
    (beside.path / "four").symlink_to(folder.path / "sub/four")
    job = beside.ran(HEAD + "  - {run: use, inputs: [four], outputs: [x]}\n", over=False)
    long = "n" * 300  # no name of a file
    found = folder.found(
        HEAD + f"  - {{each: {{l: [{long}]}}, run: 'use {{l}}', inputs: [one, all/two], outputs: [y]}}\n"
    )
    assert names(found) == ["sub/gone"]
    assert {each.name: (each.reason, each.message) for each in found.kept} == {
        "sub/one": ("document", "the document reads one, which is the same file"),
        "sub/two": ("document", "the document reads all/two, which is the same file"),
        "sub/three": ("other-document", "other{.yaml reads three, which is the same file"),
        "sub/four": ("unfinished-job", f"the unfinished job {job} reads four, which is the same file"),
    }


def test_another_document_stays_although_an_earlier_run_made_it(folder: Folder) -> None:
    other = "pilotage: 1\njob: other\nstages:\n  - {run: make it, outputs: [own]}\n"
    folder.ran(HEAD + "  - {run: make, outputs: [other.yaml]}\n", content=other)
    folder.ran(other, document="other.yaml")
    assert kept(folder.found(NEW)) == {"other.yaml": "other-document"}


def test_a_document_that_got_another_name_is_the_same_and_one_beside_it_is_not(folder: Folder) -> None:
    folder.ran(OLD, document="before.yaml")
    assert names(folder.found(NEW, document="now.yaml")) == []
    (folder.path / "before.yaml").unlink()
    assert names(folder.found(NEW, document="now.yaml")) == ["sub/old.dat"]
    other_name = NEW.replace("job: j", "job: k")
    assert names(folder.found(other_name, document="now.yaml")) == []
    (folder.path / "now.yaml").unlink()
    assert names(folder.found(other_name, document="before.yaml")) == ["sub/old.dat"]


def test_the_files_of_another_user_stay(folder: Folder) -> None:
    folder.ran(OLD, owner="bob")
    assert names(folder.found(NEW)) == []
    assert names(folder.found(NEW, owner="bob")) == ["sub/old.dat"]


def test_what_a_purged_job_made_is_found_by_its_name_unless_another_document_has_it(folder: Folder) -> None:
    job = folder.ran(OLD)
    folder.found(NEW)  # the index has learned what it made
    folder.here.journal.purge(job, at=1000.0)
    assert names(folder.found(NEW)) == ["sub/old.dat"]
    assert removal_notes(folder.removed(NEW), journal=folder.here.journal, clock=WallClock()) == []


def test_a_name_that_two_documents_have_tells_nothing_of_a_purged_job(folder: Folder) -> None:
    job = folder.ran(OLD)
    folder.ran(HEAD + "  - {run: other, outputs: [other]}\n", document="other.yaml")
    folder.found(NEW)
    folder.here.journal.purge(job, at=1000.0)
    assert names(folder.found(NEW)) == []


def test_what_the_document_makes_with_other_parameters_stays(folder: Folder) -> None:
    folder.here.write(three="1\n2\n3\n", two="1\n2\n")
    text = (
        "pilotage: 1\njob: j\nparameters: {sample: A, list: three}\nstages:\n  - each: {n: {lines: '{list}'}}\n"
        "    run: make {sample} {n}\n    outputs: ['{sample}/{n}.dat', 'all-{n}']\n"
    )
    folder.ran(text, parameters={"sample": "B"})
    found = folder.found(text, parameters={"list": "two"})
    assert names(found) == ["all-3"]
    assert kept(found) == dict.fromkeys(("B/1.dat", "B/2.dat", "B/3.dat"), "parameters")
    assert found.kept[0].message == "the document makes it with list=three, sample=B"
    assert "B/1.dat" in names(folder.found(text.replace("{sample}/", "{sample}-")))


@pytest.mark.skipif(os.geteuid() == 0, reason="privilege: nothing is refused to root")
def test_what_cannot_be_removed_is_told(folder: Folder) -> None:
    folder.ran(OLD)
    (folder.path / "sub").chmod(0o500)
    done = folder.removed(NEW)
    (folder.path / "sub").chmod(0o700)
    assert done.removed == ()
    assert [each.name for each in done.not_removed] == ["sub/old.dat"]
