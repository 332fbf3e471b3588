"""How an attempt is run, from its package: commands, inputs with their checksums, outputs, and what is left out."""

from __future__ import annotations

import msgspec
import pytest

from pilotage.language import Expansion, MemoryFolder, load
from pilotage.language.named_files import script_file
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import (
    Assignment,
    AttemptRef,
    InputSource,
    Work,
    WorkBinary,
    WorkEarlyInput,
    WorkInput,
    WorkOutput,
    WorkScript,
)
from pilotage.model.jobs.submission import Captured, Origin
from pilotage.service.works.plain_orders import plain_block
from pilotage.service.works.site_files import NotAtSite, SiteFiles
from pilotage.service.works.work_orders import compose

SHA = "ab" * 32
TREE = Origin(folder="/data")


def expanded(text: str, files: tuple[str, ...] = ()) -> Expansion:
    return load(text.encode(), file="job.yaml", folder=MemoryFolder(files)).job().expansion


def made(*names: str) -> tuple[OutputFile, ...]:
    return tuple(OutputFile(name=name, size_bytes=7, sha256=SHA) for name in names)


def work_of(
    expansion: Expansion,
    number: int,
    *,
    granted: dict[int, tuple[OutputFile, ...]] | None = None,
    origin: Origin = TREE,
    kept: str = "",
    epoch: int = 1,
) -> Work:
    manifests = granted or {}
    inputs = tuple(InputSource(expansion.id(each).dotted, 1) for each in manifests)
    ref = AttemptRef("j", expansion.id(number).dotted, 2)
    assignment = Assignment(ref=ref, inputs=inputs, epoch=epoch)
    return compose(expansion, number, assignment, origin, staged="/staged/j", manifest_of=manifests.get, kept=kept)


SWEEP = """
pilotage: 1
job: sweep
stages:
  - each: {seed: 1..3}
    run: ./simulate --seed {seed} --out sim-{seed}.dat
    outputs: [sim-{seed}.dat]
  - run: ./merge {inputs} --out result.dat
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""


def test_a_plain_package_is_its_command_with_its_files() -> None:
    assert work_of(expanded(SWEEP), 1) == Work(
        path="sweep/001/002/001",
        name="simulate-1",
        index=1,
        folder="/data",
        staged="/staged/j",
        binaries=(
            WorkBinary(
                argv=("./simulate", "--seed", "2", "--out", "sim-2.dat"), outputs=(WorkOutput(name="sim-2.dat"),)
            ),
        ),
    )


def test_a_pattern_stands_for_what_was_granted_in_order_and_with_checksums() -> None:
    expansion = expanded(SWEEP)
    work = work_of(expansion, 3, granted={n: made(f"sim-{n + 1}.dat") for n in (2, 0, 1)})
    assert work.binaries[0].argv == ("./merge", "sim-1.dat", "sim-2.dat", "sim-3.dat", "--out", "result.dat")
    assert [given.name for given in work.inputs] == ["sim-1.dat", "sim-2.dat", "sim-3.dat"]
    assert work.inputs[0] == WorkInput(name="sim-1.dat", sha256=SHA, size_bytes=7, made=True)


def test_what_a_dropped_package_would_have_made_is_in_no_list() -> None:
    work = work_of(expanded(SWEEP), 3, granted={0: made("sim-1.dat"), 2: made("sim-3.dat")})
    assert work.binaries[0].argv == ("./merge", "sim-1.dat", "sim-3.dat", "--out", "result.dat")
    assert [given.name for given in work.inputs] == ["sim-1.dat", "sim-3.dat"]


def test_a_named_input_of_a_dropped_package_is_left_out_of_the_list_too() -> None:
    text = """
pilotage: 1
job: j
stages:
  - each: {x: 1..2}
    run: make {x}
    outputs: ["{x}.dat"]
  - run: join {inputs}
    inputs: [1.dat, 2.dat]
"""
    work = work_of(expanded(text), 2, granted={1: made("2.dat")})
    assert work.binaries[0].argv == ("join", "2.dat")
    assert [given.name for given in work.inputs] == ["2.dat"]


EARLY = """
pilotage: 1
job: j
stages:
  - run: make
    outputs: [a.dat]
  - lines:
      - early_start: true
        run: follow a.dat
        inputs: [a.dat, own.dat]
"""


def early_work(number: int, *, granted: bool, cache: str = "/shared/cache") -> Work:
    """The order of the maker, or of its reader: with the file, or while the second attempt of the maker runs."""
    maker = InputSource("1.1.1", 2)
    ref = AttemptRef("j", f"{number + 1}.1.1", 3)
    assignment = Assignment(ref=ref, inputs=(maker,)) if granted else Assignment(ref=ref, early=(maker,))
    manifests = {0: made("a.dat")} if granted else {}
    return compose(
        expanded(EARLY, ("own.dat",)), number, assignment, TREE, staged="/staged/j", manifest_of=manifests.get,
        files=SiteFiles(cache=cache),
    )  # fmt: skip


def test_who_starts_early_is_told_where_its_input_grows_and_brings_only_what_is_there() -> None:
    work = early_work(1, granted=False)
    assert work.binaries[0].argv == ("follow", "a.dat")
    assert work.early == (WorkEarlyInput(name="a.dat", source="/shared/cache/.growing-j-1.1.1-2"),)
    assert [given.name for given in work.inputs] == ["own.dat"]
    assert early_work(0, granted=True).shown == "/shared/cache/.growing-j-1.1.1-3"
    assert work.shown == ""


def test_who_could_have_started_early_gets_its_input_and_is_told_that_it_is_complete() -> None:
    work = early_work(1, granted=True)
    assert work.early == (WorkEarlyInput(name="a.dat"),)
    assert [given.name for given in work.inputs] == ["a.dat", "own.dat"]


def test_where_no_folder_is_shared_nothing_starts_early() -> None:
    with pytest.raises(NotAtSite, match="no folder that all its nodes see"):
        early_work(1, granted=False, cache="")
    assert early_work(0, granted=True, cache="").shown == ""


def test_patterns_take_files_of_the_submission_where_nobody_makes_any() -> None:
    text = "pilotage: 1\njob: j\nstages:\n  - run: join {inputs}\n    inputs: ['raw/*.dat']\n"
    work = work_of(expanded(text, ("raw/b.dat", "raw/a.dat")), 0)
    assert work.binaries[0].argv == ("join", "raw/a.dat", "raw/b.dat")
    assert work.inputs == (WorkInput(name="raw/a.dat"), WorkInput(name="raw/b.dat"))


def test_programs_scripts_and_captured_inputs_come_by_their_content() -> None:
    text = """
pilotage: 1
job: j
variables: {tool: bin/tool}
stages:
  - run: "{tool} --config=settings.ini {inputs}"
    inputs: [a.dat, b.dat]
  - shell: "cat notes.txt | python3 'my script.py' > out.txt"
    outputs: [out.txt]
"""
    names = ("bin/tool", "settings.ini", "a.dat", "my script.py", "notes.txt", "unused")
    captured = {name: Captured(sha256=f"{n:064}", size_bytes=n, executable=n == 0) for n, name in enumerate(names)}
    origin = Origin(folder="/data", captured=captured)
    expansion = expanded(text, ("a.dat", "b.dat"))
    first = {given.name: given for given in work_of(expansion, 0, origin=origin).inputs}
    assert set(first) == {"bin/tool", "settings.ini", "a.dat", "b.dat"}
    assert first["bin/tool"] == WorkInput(
        name="bin/tool", sha256=f"{0:064}", size_bytes=0, content=True, executable=True
    )
    assert first["a.dat"].content
    assert not first["b.dat"].content
    second = {given.name for given in work_of(expansion, 1, origin=origin).inputs}
    assert second == {"my script.py", "notes.txt"}


@pytest.mark.parametrize(
    "runs",
    ["run: python3 {script} {n}", "packages: [{binaries: [{run: 'python3 {script} {n}'}, {run: 'echo {n}'}]}]"],
    ids=["the quick way", "the long way"],
)
def test_each_package_gets_the_script_that_it_runs(runs: str) -> None:
    each = "{n: 1..2, script: [fit.py, draw.py, none.py]}"
    expansion = expanded(f"pilotage: 1\njob: j\nstages:\n  - each: {each}\n    {runs}\n")
    captured = {name: Captured(sha256=SHA, size_bytes=3) for name in ("fit.py", "draw.py")}
    origin = Origin(folder="/data", captured=captured)
    brought = [[each.name for each in work_of(expansion, number, origin=origin).inputs] for number in range(6)]
    assert brought == 2 * [["fit.py"], ["draw.py"], []]


def test_what_a_producer_made_goes_before_what_was_captured_under_the_same_name() -> None:
    text = "pilotage: 1\njob: j\nstages:\n  - {run: make, outputs: [a]}\n  - {run: use a, inputs: [a]}\n"
    origin = Origin(folder="/data", captured={"a": Captured(sha256="cd" * 32)})
    assert work_of(expanded(text), 1, granted={0: made("a")}, origin=origin).inputs == (
        WorkInput(name="a", sha256=SHA, size_bytes=7, made=True),
    )


def test_a_large_program_is_brought_from_its_folder_and_must_be_the_same() -> None:
    text = "pilotage: 1\njob: j\nstages:\n  - run: ./large\n"
    origin = Origin(folder="/data", captured={"large": Captured(sha256=SHA, content=False, executable=True)})
    (brought,) = work_of(expanded(text), 0, origin=origin).inputs
    assert (brought.content, brought.sha256, brought.executable) == (False, SHA, True)
    assert not brought.stored
    (sent,) = work_of(expanded(text), 0, origin=msgspec.structs.replace(origin, sent_from="/far")).inputs
    assert sent.stored


def test_what_a_binary_fetches_itself_is_not_brought() -> None:
    text = "pilotage: 1\njob: j\nstages:\n  - run: get a\n    inputs: [{name: a, acquisition: self}, b]\n"
    assert [given.name for given in work_of(expanded(text, ("a", "b")), 0).inputs] == ["b"]


CHAIN = """
pilotage: 1
job: j
environment: {exported: {LANG: C, WHO: "{x}"}}
stages:
  - each: {x: [one, two]}
    lines:
      - packages:
          - startup_script: ""
            container: {image: "busybox:{x}"}
            progress: {stalled_after: 60, files: ["{x}.log"]}
            failure_patterns: ["out of luck"]
            scripts: {pre: "check {x}", post: {run: "confirm {x}", defer_exit_code: 4, defer_seconds: 9}}
            binaries:
              - run: first {x}
                inputs: [in.dat]
                stdout: "{x}.log"
                outputs: ["part-*.dat", {expression: "[a-z]+", folder: "found/{x}"}]
              - run: second part-1.dat {x}.log
                inputs: [part-1.dat, "{x}.log"]
                stdin: in.dat
                outputs: ["{x}.out"]
"""


def test_everything_that_a_package_asks_for_is_handed_on() -> None:
    work = work_of(expanded(CHAIN, ("in.dat",)), 1, kept="/kept", epoch=3)
    assert [binary.argv for binary in work.binaries] == [("first", "two"), ("second", "part-1.dat", "two.log")]
    assert work.binaries[0].environment == {"LANG": "C", "WHO": "two"}
    assert work.binaries[0].outputs == (
        WorkOutput(name="part-*.dat", pattern=True),
        WorkOutput(expression="[a-z]+", folder="found/two"),
    )
    assert (work.binaries[0].stdout, work.binaries[1].stdin) == ("two.log", "in.dat")
    assert [given.name for given in work.inputs] == ["in.dat"]
    assert work.container is not None
    assert work.container.image == "busybox:two"
    assert (work.watched, work.stalled_after_seconds) == (("two.log",), 60)
    assert work.failure_patterns[0].pattern == "out of luck"
    assert work.pre == WorkScript(argv=("check", "two"))
    assert work.post == WorkScript(argv=("confirm", "two"), defer_exit_code=4, defer_seconds=9)
    assert work.kept == "/kept/j-1.2.1-3"


def test_a_startup_script_runs_with_its_parameters_and_keeps_the_outputs_of_the_binaries() -> None:
    text = """
pilotage: 1
job: j
stages:
  - lines:
      - packages:
          - startup_script: start.sh
            startup_parameters: ["{inputs}", fast]
            binaries: [{run: one, inputs: [a]}, {run: two, outputs: [b]}]
"""
    work = work_of(expanded(text, ("a",)), 0)
    assert work.startup == ("start.sh", "a", "fast")
    assert [binary.outputs for binary in work.binaries] == [(), (WorkOutput(name="b"),)]


def test_of_several_binaries_each_has_the_name_that_the_document_gives_it() -> None:
    text = "pilotage: 1\njob: j\nstages: [{packages: [{binaries: [{name: a, run: x}, {run: y}]}, {binaries: [{name: c, run: z}]}]}]\n"
    job = expanded(text)
    assert [[each.name for each in work_of(job, number).binaries] for number in (0, 1)] == [["a", ""], [""]]


def test_the_software_of_a_package_is_named_with_its_version() -> None:
    text = """
pilotage: 1
job: j
software: [{id: reco, version: p1, run: "scripts/reco {file}"}]
stages:
  - {software: reco, parameters: {file: a}, inputs: [a]}
"""
    origin = Origin(folder="/data", captured={"scripts/reco": Captured(sha256=SHA, executable=True)})
    work = work_of(expanded(text, ("a",)), 0, origin=origin)
    assert work.software == "reco@p1"
    assert [given.name for given in work.inputs] == ["scripts/reco", "a"]


def test_a_package_without_work_runs_only_its_scripts() -> None:
    text = """
pilotage: 1
job: j
stages:
  - lines: [{packages: [{noop: true, scripts: {pre: look}, binaries: [{run: never, outputs: [x]}]}]}]
"""
    work = work_of(expanded(text), 0)
    assert (work.binaries, work.inputs) == ((), ())
    assert work.pre == WorkScript(argv=("look",))


def test_a_package_behind_one_that_was_done_before_takes_its_declared_files() -> None:
    text = """
pilotage: 1
job: j
stages:
  - lines: [{packages: [{done: true, binaries: [{run: make, outputs: [a1, a2]}]}]}]
  - run: use {inputs}
    inputs: ["a*"]
"""
    work = work_of(expanded(text), 1, granted={0: ()})
    assert work.binaries[0].argv == ("use", "a1", "a2")
    assert work.inputs == (WorkInput(name="a1"), WorkInput(name="a2"))


@pytest.mark.parametrize("between", ["\0", "-"])  # of which the second is in the texts themselves
@pytest.mark.parametrize(
    "binary",
    [
        {"run": ["go", "{seed}", "{tag}", "{package}", "{inputs}", "{outputs}", "{where}"]},
        {"run": ["go", "in-{seed}", "o/{a}-{seed}", "100%", "{a}%s{{", "in-{seed}", "{where}"], "stdout": "log-{tag}"},
        {"run": ["go", "{seed}"], "arguments": ["-x", "{outputs}", "{seed}"]},
        {"shell": "go {seed} > {outputs}; echo ${x}"},
        {"run": ["go", "{arguments}", "end"], "arguments": ["{inputs}"], "environment": {"exported": {"A": "b"}}},
        {"invoking_script": "bin/go", "arguments": ["{seed}"], "stdin": "in-{seed}", "stdout": "log/./{tag}"},
    ],
)
def test_the_quick_way_and_the_long_way_write_the_same(
    binary: dict[str, object], between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.service.works.plain_orders._BETWEEN", between)
    files = {"inputs": ["in-{seed}", "{where}//d-{a}"], "outputs": ["o/{a}-{seed}"]}
    line = {"each": {"seed": "08..11"}, "packages": [{"binaries": [{**binary, **files}]}]}
    job = {
        "pilotage": 1,
        "job": "j",
        "variables": {"where": "here"},
        "stages": [{"each": {"a": ["x", "y"]}, "lines": [line]}],
    }
    names = [f"in-{seed:02}" for seed in range(8, 12)] + ["here/d-x", "here/d-y"]
    expansion = expanded(msgspec.json.encode(job).decode(), tuple(names))
    assert plain_block(expansion.blocks[0], expansion.definition) is not None
    quick = [work_of(expansion, number) for number in range(expansion.count)]
    monkeypatch.setattr("pilotage.service.works.work_orders.plain_block", lambda *_: None)
    long = [work_of(expansion, number, origin=msgspec.structs.replace(TREE)) for number in range(expansion.count)]
    assert quick == long
    assert len({work.binaries[0].outputs for work in quick}) == 8


@pytest.mark.parametrize(
    "words, name",
    [
        (["./check", "a.dat"], "check"),
        (["tools/check.sh"], "tools/check.sh"),
        (["sh", "-eu", "check.sh", "a.dat"], "check.sh"),
        (["/usr/bin/python3.11", "check.py"], "check.py"),
        (["sh", "-c", "./check a.dat"], ""),
        (["bash", "-ec", "./check a.dat"], ""),
        (["python3", "-m", "check"], ""),
        (["perl", "-ne", "print"], ""),
        (["perl", "-w", "check.pl"], "check.pl"),
        (["touch", "a.dat"], "touch"),  # a file of that name in the tree, or none
        (["/bin/check"], ""),
        (["../check"], ""),
        (["sh"], ""),
        ([], ""),
    ],
)
def test_of_a_script_beside_a_package_only_the_file_that_it_is_counts(words: list[str], name: str) -> None:
    assert script_file(words) == name


@pytest.mark.parametrize("each", ["", "each: {n: 1..3}, "])
def test_a_package_may_say_that_its_scratch_is_kept_when_it_fails(each: str) -> None:
    text = "pilotage: 1\njob: j\nstages: [{EACHrun: go, environment: {setting: {keep_failed: SAID}}}]\n".replace(
        "EACH", each
    )
    assert work_of(expanded(text.replace("SAID", "true")), 0).keep_failed
    assert not work_of(expanded(text.replace("SAID", "false")), 0).keep_failed


def test_the_meaning_of_exit_codes_comes_with_described_software() -> None:
    text = """pilotage: 1
job: j
software:
  - id: blur
    boutiques:
      {name: blur, tool-version: "1", description: d, schema-version: "0.5", command-line: "blur [IN]",
       inputs: [{id: in, name: i, type: String, value-key: "[IN]"}],
       error-codes: [{code: 3, description: the subject is not there}]}
stages:
  - packages:
      - binaries: [{software: blur, parameters: {in: a}}]
"""
    (binary,) = work_of(expanded(text), 0).binaries
    assert binary.error_codes == {"3": "the subject is not there"}
