"""From a document to a job that can be registered: what is checked, kept, brought along and refused; and back again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.book.query import EVERYTHING
from pilotage.language import DiskFolder, Expansion, MemoryFolder, load
from pilotage.model.errors import DocumentError, Problem
from pilotage.model.events.events import JOB_ID, Event
from pilotage.model.jobs.definition import plain
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.jobs.submission import Captured, Submission
from pilotage.ports import NotOurs
from pilotage.service.jobs.refusals import KnownStores, others_files_refused, refusals
from pilotage.service.jobs.submission import Prepared, SubmissionError, expand_late_stage, prepare, recall
from pilotage.service.works.capture import INPUT_BYTES_MAX, INPUTS_MAX, DiskFiles, capture
from tests.kit.earlier_work import Place, place
from tests.kit.sqlite_books import keep

SWEEP = """
pilotage: 1
job: my+sweep
stages:
  - each: {seed: 1..5}
    run: ./simulate --seed {seed} --config=settings.ini
    outputs: [sim-{seed}.dat]
  - run: merge {inputs}
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A folder with a program and its settings."""
    with place(tmp_path) as made:
        made.write(simulate="#!/bin/sh\n", settings_ini="a=1\n")
        (tmp_path / "simulate").chmod(0o755)
        yield made


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def registered(here: Place, prepared: Prepared) -> None:
    data = msgspec.Raw(msgspec.json.encode(prepared.registered))
    keep(
        here.journal,
        [Event(source="service", stream="s", n=1, type="JobRegistered", time=1.0, job=prepared.job, data=data)],
    )


def same_plan(one: JobPlan, other: JobPlan) -> bool:
    return (
        one.templates == other.templates
        and one.template_of.tolist() == other.template_of.tolist()
        and list(one.graph.edges()) == list(other.graph.edges())
        and (one.late, one.laid_out, one.late_waits) == (other.late, other.laid_out, other.late_waits)
    )


# --- prepare ---


def test_a_job_is_prepared_with_everything_kept_by_its_content(here: Place) -> None:
    prepared = here.prepare(SWEEP)
    told = prepared.registered
    assert (told.owner, told.name, [stage.packages for stage in told.stages]) == ("ada", "my+sweep", [5, 1])
    assert prepared.plan.count == prepared.expansion.count == 6
    assert told.definition is not None
    definition = here.journal.content(told.definition)
    assert definition is not None
    assert msgspec.json.decode(definition) == plain(prepared.expansion.definition)
    assert set(told.lists) == {"resolved", "captured", "origin", "file-1", "file-2"}
    assert {told.lists["file-1"], told.lists["file-2"]} == {sha("#!/bin/sh\n"), sha("a=1\n")}


def test_a_submission_goes_over_the_wire_as_it_is(here: Place) -> None:
    submission = here.submission(SWEEP, keep_failed=True)
    assert msgspec.json.decode(msgspec.json.encode(submission), type=Submission) == submission


def test_ids_are_short_names_with_something_by_chance(here: Place) -> None:
    first, second = here.prepare(SWEEP).job, here.prepare(SWEEP).job
    assert first != second
    assert first.startswith("my-sweep-")
    assert len(first) == len("my-sweep-") + 6
    for name in (first, here.prepare(SWEEP.replace("my+sweep", "s" * 100)).job, here.prepare(SWEEP, id="own").job):
        assert JOB_ID.fullmatch(name)


def test_an_id_that_cannot_be_one_is_refused(here: Place) -> None:
    with pytest.raises(SubmissionError, match="valid job id"):
        here.prepare(SWEEP, id="../x")


def test_a_job_without_an_owner_or_a_folder_is_refused(here: Place) -> None:
    submission = here.submission(SWEEP)

    def prepared(**changes: Any) -> Prepared:
        changed = msgspec.structs.replace(submission, **changes)
        return prepare(changed, journal=here.journal, tree=here.tree, index=here.index, owner="")

    with pytest.raises(SubmissionError, match="has no owner"):
        prepared()
    assert prepared(owner="bob").registered.owner == "bob"
    for folder in ("relative", "/nowhere/at/all", str(here.folder / "simulate")):
        with pytest.raises(SubmissionError, match="folder"):
            prepared(owner="bob", folder=folder)


def test_a_definition_with_a_fault_is_told_as_any_document(here: Place) -> None:
    submission = msgspec.structs.replace(here.submission(SWEEP), definition={"pilotage": 1, "job": "j", "stagez": []})
    with pytest.raises(DocumentError, match="stagez"):
        prepare(submission, journal=here.journal, tree=here.tree, index=here.index, owner="ada")


def test_what_was_not_sent_is_asked_for(here: Place) -> None:
    captured = {"simulate": Captured(sha256=sha("never sent"))}
    submission = msgspec.structs.replace(here.submission(SWEEP), captured=captured)
    with pytest.raises(SubmissionError, match="not sent") as refused:
        prepare(submission, journal=here.journal, tree=here.tree, index=here.index, owner="ada")
    assert refused.value.subject == "simulate"


def test_an_output_that_somebody_else_made_is_refused_before_anything_is_kept(here: Place) -> None:
    for number in (1, 3):
        (here.folder / f"sim-{number}.dat").write_text("mine")
    with pytest.raises(NotOurs, match=r"2 outputs exist already.*sim-1\.dat, sim-3\.dat") as refused:
        here.prepare(SWEEP)
    assert "--replace, which keeps what is there as sim-1.dat.~1~ and so on" in refused.value.next_step
    assert "move them away" in refused.value.next_step
    assert here.prepare(SWEEP, replace=True).in_the_way == ("sim-1.dat", "sim-3.dat")


def test_of_many_outputs_that_are_in_the_way_five_are_named_and_the_others_counted(here: Place) -> None:
    text = "pilotage: 1\njob: j\nstages: [{each: {n: 1..7}, run: 'work {n}', outputs: ['{n}.dat']}]\n"
    for number in range(1, 8):
        (here.folder / f"{number}.dat").write_text("mine")
    with pytest.raises(NotOurs) as refused:
        here.prepare(text)
    assert refused.value.what.endswith("since: 1.dat, 2.dat, 3.dat, 4.dat, 5.dat and 2 more")
    for number in (6, 7):
        (here.folder / f"{number}.dat").unlink()
    with pytest.raises(NotOurs) as refused:
        here.prepare(text)
    assert refused.value.what.endswith("since: 1.dat, 2.dat, 3.dat, 4.dat, 5.dat")


def test_a_million_outputs_are_looked_for_by_listing_their_folder(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "pilotage: 1\njob: j\nstages: [{each: {n: 1..20000}, run: 'work {n}', outputs: ['out/{n}.dat']}]\n"
    (here.folder / "out").mkdir()
    (here.folder / "out/unrelated").write_text("x")
    submission = here.submission(text)
    asked: list[str] = []
    real = os.stat

    def noted(path: Any, *rest: Any, **more: Any) -> os.stat_result:
        asked.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr("os.stat", noted)
    prepare(submission, journal=here.journal, tree=here.tree, index=here.index, owner="ada")
    assert not [path for path in asked if path.endswith(".dat")]


SUBJOB = ("subjob: other.yaml", "subjob: other.yaml")
REFUSED = [
    ("inputs: [{name: a, acquisition: none, locator: /far/a, disposition: deletable}]", "disposition `deletable` of"),
    ("inputs: [{name: a, disposition: deletable}]", "disposition `deletable` of the input 'a'"),
    ("inputs: [{name: x, locator: 'lfn:/grid/x'}]", "no store has the locator 'lfn:/grid/x' of the input 'x'"),
    ("outputs: [{name: b, locator: 'sam://st/b'}]", "no store has the locator 'sam://st/b' of the output 'b'"),
    (
        "inputs: [{name: a, disposition: retain-temporarily}], outputs: ['{n}.dat'], each: {n: 1..2}",
        "disposition `retain-temporarily` of the input 'a', which no package of the job makes",
    ),
    ("environment: {setting: {queue: long}}", "the setting queue of a package"),
    ("environment: {setting: {account: us}}", "the setting account of a package"),
    ("environment: {setting: {interval_seconds: 5}}", "the setting interval_seconds of a package"),
    ("nodes: 2, container: {image: debian}", "container of a package of 2 nodes"),
    ("role: service", "role: service"),
    ("role: provisioner", "role: provisioner"),
    ("scripts: {hold: tell}", "scripts.hold"),
    ("role: final, abort_on: 3", "abort_on of a package that runs last"),
]


def problems(stage: str) -> list[Problem]:
    text = f"pilotage: 1\njob: j\nstages: [{{name: s, {stage}}}]\n"
    loaded = load(text.encode(), file="job.yaml", folder=MemoryFolder(["a"])).job()
    return refusals(loaded.definition, file="job.yaml")


@pytest.mark.parametrize("field, told", [*((f"run: go, {field}", told) for field, told in REFUSED), SUBJOB])
def test_a_field_that_cannot_be_honoured_is_refused_by_name(field: str, told: str) -> None:
    found = problems(field)
    assert any(told in problem.message and "stage 's'" in problem.message for problem in found)
    assert all(problem.file == "job.yaml" and problem.hint for problem in found)


@pytest.mark.parametrize(
    "field",
    [
        "inputs: [{name: a, acquisition: none}]",
        "inputs: [{name: a, acquisition: self, locator: 'http://x/a'}]",
        "inputs: [{name: a, disposition: retain-indefinitely}]",
        "inputs: [{name: x, locator: 'http://x/a'}]",
        "inputs: [{name: x, locator: 's3://b/{job}/', acquisition: prefetch, disposition: release}]",
        "outputs: [{name: b, locator: /far/b}]",
        "outputs: [{name: b, replicas: 2, dispositions: [forward, store, deletable]}]",
        "outputs: [{name: b, dispositions: [forward, retain-indefinitely]}]",
        "environment: {setting: {keep_failed: true, replicas_max: 2, attempts_max: 3}}",
        "data_handling: true",
        "nodes: 2",
        "node_restriction: [n1]",
        "role: final",
        "scripts: {pre: look, post: check}",
    ],
)
def test_what_a_folder_can_honour_is_taken(field: str) -> None:
    assert problems(f"run: go, {field}") == []


def test_a_file_that_no_earlier_job_made_cannot_be_released() -> None:
    text = "pilotage: 1\njob: j\nstages: [{run: go, inputs: [{name: a, disposition: release}]}]\n"
    loaded = load(text.encode(), file="job.yaml", folder=MemoryFolder(["a"])).job()
    [found] = others_files_refused(loaded.expansion, owner="ada", stores=None, file="job.yaml")
    assert (found.code, found.file) == ("not-released", "job.yaml")
    assert found.message.startswith("the input 'a' cannot be released")


def test_a_scheme_that_is_nearly_one_of_a_store_is_told() -> None:
    (found,) = problems("run: go, inputs: [{name: x, locator: 'stfp://h/x'}]")
    assert (found.code, found.hint) == ("no-store", "did you mean 'sftp:'?")


def test_unknown_schemes_are_told_with_their_places_and_with_all_other_faults() -> None:
    text = """pilotage: 1
job: j
software: [{id: reco, archives: [{locator: "htp://h/reco.tar"}]}]
stages:
  - run: go
    inputs: [{name: x, locator: "s4://b/x"}, {name: y, locator: "far://b/y"}, not-there.txt]
    outputs: [{name: b, locator: "{z}/b"}]
    each: {z: [s3://c]}
"""
    read = load(text.encode(), file="job.yaml", folder=MemoryFolder(), schemes=lambda: ["far"])
    found = {(each.code, each.line, each.hint) for each in read.report.errors}
    assert {("no-store", 3, "did you mean 'http:'?"), ("no-store", 6, "did you mean 's3:'?")} < found
    assert [each.code for each in read.report.errors].count("no-store") == 2
    assert "missing-input" in {code for code, _, _ in found}
    elsewhere = load(text.encode(), file="job.yaml", folder=MemoryFolder())
    assert "no-store" not in {each.code for each in elsewhere.report.errors}


@pytest.mark.parametrize(
    "output, archives, told",
    [
        ("dispositions: [store]", [], "a copy of the output 'b' must be stored, and there is no store"),
        ("dispositions: [store]", ["s3://a/"], ""),
        ("replicas: 2", ["s3://a/"], "2 copies of the output 'b' must be stored, and there are stores for 1"),
        ("replicas: 3, locator: 'sftp://h/x'", ["s3://a/", "s3://b/"], ""),
        (
            "replicas: 3, locator: 's3://a/x'",
            ["s3://a/", "s3://b/"],
            "3 copies of the output 'b' must be stored, and there are stores for 2",
        ),
        ("locator: 's3://c/x'", [], ""),
        ("dispositions: [forward]", [], ""),
    ],
)
def test_more_copies_than_stores_are_refused(output: str, archives: list[str], told: str) -> None:
    text = f"pilotage: 1\njob: j\nstages: [{{run: go, outputs: [{{name: b, {output}}}]}}]\n"
    definition = load(text.encode(), file="job.yaml", folder=MemoryFolder()).job().definition
    found = refusals(definition, file="job.yaml", stores=KnownStores(archives=archives))
    assert [each.code for each in found] == (["no-store"] if told else [])
    assert all(told in each.message and each.hint for each in found)


def test_a_submission_with_such_a_field_is_refused(here: Place) -> None:
    with pytest.raises(DocumentError, match="role: service"):
        here.prepare("pilotage: 1\njob: j\nstages: [{run: go, role: service}]\n")


@pytest.mark.parametrize(
    "stages, told",
    [
        ("{run: go, outputs: [a], role: final}, {run: read, inputs: [a]}", "1.1.1 has the role `final`, and others"),
        ("{run: go, outputs: ['*.a'], role: final}, {each: {f: '*.a'}, run: go}", "and stage 2 wait for it"),
        ("{run: go, outputs: ['*.a'], abort_on: 0}, {each: {f: '*.a'}, run: go}", "abort_on: 0"),
    ],
)
def test_an_end_that_cannot_be_is_refused(here: Place, stages: str, told: str) -> None:
    with pytest.raises(DocumentError) as refused:
        here.prepare(f"pilotage: 1\njob: j\nstages: [{stages}]\n")
    assert told in refused.value.problems[0].message


# --- recall and grow ---


def test_a_job_is_recalled_from_the_book_as_it_was(here: Place) -> None:
    prepared = here.prepare(SWEEP, keep_failed=True)
    registered(here, prepared)
    row = here.journal.job(prepared.job)
    assert row is not None
    recalled = recall(here.journal, row)
    assert recalled.definition == prepared.expansion.definition
    assert recalled.origin == prepared.origin
    assert recalled.origin.keep_failed
    assert recalled.expansion.package(2) == prepared.expansion.package(2)
    assert same_plan(recalled.plan, prepared.plan)


def test_a_job_of_which_something_is_lost_is_told(here: Place) -> None:
    registered(here, here.prepare(SWEEP, id="lost"))
    row = here.journal.job("lost")
    assert row is not None
    row.lists = "{}"
    with pytest.raises(SubmissionError, match="lacks a part"):
        recall(here.journal, row)


LATE = """
pilotage: 1
job: late
stages:
  - {run: split, outputs: ["part-*"]}
  - {each: {part: "part-*"}, run: "work {part}", inputs: ["{part}"], outputs: ["half-{part}-*"]}
  - {each: {half: "half-*"}, run: "end {half}", inputs: ["{half}"], outputs: ["done-{half}"]}
  - {run: "join {inputs}", inputs: ["done-*"], outputs: [joined]}
"""


def test_late_stages_are_laid_out_and_recalled_in_their_order(here: Place) -> None:
    prepared = here.prepare(LATE)
    registered(here, prepared)
    expansion, plan = prepared.expansion, prepared.plan
    produced: dict[int, list[str]] = {0: ["part-b", "part-a"]}
    for n, stage in enumerate((2, 3), start=2):
        expansion, plan, (told,) = expand_late_stage(here.journal, expansion, stage=stage, produced=produced)
        data = msgspec.Raw(msgspec.json.encode(told))
        event = Event(source="service", stream="s", n=n, type="StageExpanded", time=2.0, job=prepared.job, data=data)
        keep(here.journal, [event])
        for number in range(prepared.expansion.count, expansion.count):
            produced.setdefault(number, [f"half-{expansion.package(number).tag}-{number}"])
        row = here.journal.job(prepared.job)
        assert row is not None
        recalled = recall(here.journal, row)
        assert recalled.lists == expansion.resolved
        assert same_plan(recalled.plan, plan)
        assert recalled.expansion.stage_names == expansion.stage_names
    assert expansion.count == 6
    assert not plan.late
    assert [each.stage for each in plan.laid_out] == [2, 3]


def test_a_stage_that_becomes_known_with_another_is_told_and_recalled(here: Place) -> None:
    prepared = here.prepare(LATE.replace("half-{part}-*", "half-{part}"))
    registered(here, prepared)
    expansion, plan, told = expand_late_stage(
        here.journal, prepared.expansion, stage=2, produced={0: ["part-b", "part-a"]}
    )
    assert [(each.stage, bool(each.lists)) for each in told] == [(2, True), (3, False)]
    events = [
        Event(
            source="service",
            stream="s",
            n=n,
            type="StageExpanded",
            time=2.0,
            job=prepared.job,
            data=msgspec.Raw(msgspec.json.encode(each)),
        )
        for n, each in enumerate(told, start=2)
    ]
    keep(here.journal, events)
    row = here.journal.job(prepared.job)
    assert row is not None
    assert row.late == 0
    recalled = recall(here.journal, row)
    assert (recalled.lists, recalled.expansion.count) == (expansion.resolved, 6)
    assert same_plan(recalled.plan, plan)


def test_a_growth_that_cannot_be_is_told(here: Place) -> None:
    prepared = here.prepare(LATE.replace("half-{part}-*", "half-*"))
    with pytest.raises(DocumentError, match="two packages"):
        expand_late_stage(here.journal, prepared.expansion, stage=2, produced={0: ["part-a"], 1: ["part-a"]})


def test_a_recall_looks_through_the_events_only_where_stages_were_late(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = here.prepare(SWEEP)
    registered(here, prepared)
    row = here.journal.job(prepared.job)
    assert row is not None
    assert here.journal.find_events(EVERYTHING, after=0, limit=5, job=row).items
    monkeypatch.setattr(type(here.journal), "find_events", None)
    assert recall(here.journal, row).plan.count == 6


# --- what is brought along ---


def captured(here: Place, text: str) -> dict[str, Captured]:
    return here.submission(text).captured


def test_programs_and_what_commands_name_are_brought_along(here: Place) -> None:
    found = captured(here, SWEEP)
    assert found == {
        "simulate": Captured(sha256=sha("#!/bin/sh\n"), size_bytes=10, executable=True),
        "settings.ini": Captured(sha256=sha("a=1\n"), size_bytes=4),
    }
    assert here.journal.content(found["simulate"].sha256) == b"#!/bin/sh\n"


@pytest.mark.parametrize(
    "stage",
    [
        {"run": "python3 tool.py"},
        {"run": ["python3", "./tool.py"]},
        {"shell": "set -e; cat x|python3 tool.py>out"},
        {"shell": "python3 {where}tool.py"},
        {"invoking_script": "tool.py"},
        {"lines": [{"packages": [{"startup_script": "tool.py", "binaries": [{"run": "x"}]}]}]},
        {
            "lines": [
                {"packages": [{"startup_script": "s", "startup_parameters": ["tool.py"], "binaries": [{"run": "x"}]}]}
            ]
        },
        {"run": "python3 here/../tool.py"},
        {"run": "python3", "arguments": ["{where}tool.py"]},
        {"software": "s"},
    ],
)
def test_a_script_is_found_wherever_a_command_stands(tmp_path: Path, stage: dict[str, Any]) -> None:
    (tmp_path / "tool.py").write_text("print()")
    document = {
        "pilotage": 1,
        "job": "j",
        "variables": {"where": "./"},
        "software": [{"id": "s", "run": "python3 tool.py"}],
        "stages": [stage],
    }
    loaded = load(msgspec.json.encode(document), file="job.json", folder=DiskFolder(tmp_path)).job()
    found = capture(loaded.expansion, DiskFiles(tmp_path), lambda data: sha(data.decode()))
    assert found == {"tool.py": Captured(sha256=sha("print()"), size_bytes=7)}


@pytest.mark.parametrize(
    "stage, found",
    [
        ({"run": "python3 {script}"}, {"fit.py", "draw.py"}),
        ({"run": "python3 -u ./{script.stem}.py --n 1"}, {"fit.py", "draw.py"}),
        ({"run": "./{script}"}, {"fit.py", "draw.py"}),
        ({"run": "python3", "arguments": ["{script}"]}, {"fit.py", "draw.py"}),
        ({"run": "python3 /opt/{script}"}, set()),
        ({"run": "python3 -c {script}"}, set()),
        ({"run": "cat {script}"}, set()),  # what it reads is an input, and may be large
    ],
)
def test_scripts_that_differ_by_package_are_brought_along(
    tmp_path: Path, stage: dict[str, Any], found: set[str]
) -> None:
    for name in ("fit.py", "draw.py", "made.py"):
        (tmp_path / name).write_text(name)
    expansion = _differing_by(tmp_path, stage, ["fit.py", "draw.py", "made.py", "nowhere.py", "fit.py"])
    assert set(capture(expansion, DiskFiles(tmp_path), lambda data: sha(data.decode()))) == found


def test_of_scripts_that_differ_there_are_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{number}.py" for number in range(5)]
    for name in names:
        (tmp_path / name).write_text("0123456789")
    expansion = _differing_by(tmp_path, {"run": "python3 {script}"}, [*names, *names])

    def found() -> int:
        return len(capture(expansion, DiskFiles(tmp_path), lambda data: sha(data.decode())))

    monkeypatch.setattr("pilotage.language.named_files.SCRIPTS_MAX", 5)
    assert found() == 5
    monkeypatch.setattr("pilotage.service.works.capture.SCRIPTS_BYTES_MAX", 39)
    assert found() == 3
    monkeypatch.setattr("pilotage.language.named_files.SCRIPTS_MAX", 4)
    assert found() == 0


def _differing_by(folder: Path, stage: dict[str, Any], scripts: list[str]) -> Expansion:
    stages = [{**stage, "each": {"script": scripts}}, {"run": "make", "outputs": ["made.py"]}]
    document = {"pilotage": 1, "job": "j", "stages": stages}
    return load(msgspec.json.encode(document), file="job.json", folder=DiskFolder(folder)).job().expansion


def test_what_is_outside_made_by_the_job_or_no_file_is_not_brought(here: Place, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    here.write(old_dat="left by an earlier run")
    text = """
pilotage: 1
job: j
stages:
  - run: ./simulate old.dat /etc/passwd ../up folder none.txt
    outputs: [old.dat]
"""
    assert set(captured(here, text)) == {"simulate"}


def test_what_a_late_stage_names_is_brought_like_everything_else(here: Place) -> None:
    here.write(
        split_sh="split", twice_sh="twice", table_dat="1", before_sh="before", fixed_dat="left by an earlier run"
    )
    text = """
pilotage: 1
job: j
stages:
  - run: sh split.sh
    outputs: [part-*.txt]
  - each: {p: part-*.txt}
    run: sh twice.sh {p}
    inputs: ["{p}", table.dat]
    outputs: ["{p.stem}.out", fixed.dat]
    scripts: {pre: sh before.sh}
  - each: {q: "*.out"}
    shell: python3 ./simulate {q} > {q}.more; cat fixed.dat
    outputs: ["{q}.more"]
"""
    found = captured(here, text)
    assert set(found) == {"split.sh", "twice.sh", "table.dat", "before.sh", "simulate"}
    assert found["twice.sh"] == Captured(sha256=sha("twice"), size_bytes=5)


def test_small_inputs_are_captured_and_large_ones_are_not(here: Place) -> None:
    (here.folder / "small.dat").write_bytes(b"x" * INPUT_BYTES_MAX)
    (here.folder / "large.dat").write_bytes(b"x" * (INPUT_BYTES_MAX + 1))
    here.write(listed_txt="1", own_txt="2")
    text = """
pilotage: 1
job: j
stages:
  - each: {name: [small, large]}
    run: use {name}
    inputs: ["{name}.dat", "list*.txt", {name: own.txt, acquisition: self}]
"""
    assert set(captured(here, text)) == {"small.dat", "listed.txt"}


def test_no_more_inputs_are_captured_than_there_is_room_for(tmp_path: Path) -> None:
    for number in range(INPUTS_MAX + 5):
        (tmp_path / f"{number}.in").write_bytes(b"")
    text = b"pilotage: 1\njob: j\nstages: [{each: {f: '*.in'}, run: 'use {f}', inputs: ['{f}']}]\n"
    names = [path.name for path in tmp_path.iterdir()]
    expansion = load(text, file="job.yaml", folder=MemoryFolder(names)).job().expansion
    assert len(capture(expansion, DiskFiles(tmp_path), lambda data: sha(data.decode()))) == INPUTS_MAX


def test_an_input_that_exceeds_the_room_left_for_inputs_is_read_in_place(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.service.works.capture.INPUTS_BYTES_MAX", 10)
    for name, size_bytes in (("a.in", 6), ("b.in", 5), ("c.in", 4)):
        (here.folder / name).write_bytes(b"x" * size_bytes)
    text = "pilotage: 1\njob: j\nstages: [{run: use, inputs: [a.in, b.in, c.in]}]\n"
    assert set(captured(here, text)) == {"a.in", "c.in"}


def test_a_large_program_is_known_by_its_checksum_alone(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotage.service.works.capture.PROGRAM_BYTES_MAX", 5)
    found = captured(here, SWEEP)["simulate"]
    assert found == Captured(sha256=sha("#!/bin/sh\n"), size_bytes=10, executable=True, content=False)
    assert here.journal.content(found.sha256) is None
    assert here.prepare(SWEEP).registered.lists.keys() == {"resolved", "captured", "origin", "file-1"}


def test_a_shell_script_with_an_open_quote_is_still_looked_at(here: Place) -> None:
    here.write(tool_py="print()")
    assert "tool.py" in captured(here, 'pilotage: 1\njob: j\nstages: [{shell: "python3 tool.py \'open"}]\n')
