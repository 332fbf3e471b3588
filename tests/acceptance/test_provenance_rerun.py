"""Jobs that really ran are run again from their records, compared, and their files traced."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.app.provenance.recorded_jobs import recorded_in
from pilotage.app.provenance.traces import traced
from tests.kit.real_runs import Place, place_in

LARGE = b"x" * 300_000  # too large for the record
SCRIPT = "#!/bin/sh\ncat $1 - | tr a-z A-Z\n"

SUM = """\
pilotage: 1
job: sum
parameters: {word: {default: "one"}}
stages:
  - name: make
    each: {n: 1..3}
    shell: 'echo {word} {n} | ./upper.sh text.txt > part-{n}.txt'
    inputs: [upper.sh, text.txt]
    outputs: ["part-{n}.txt"]
  - name: join
    run: [cat]
    arguments: ["{inputs}"]
    inputs: ["part-*.txt"]
    stdout: all.txt
"""
CLOCK = """\
pilotage: 1
job: clock
stages:
  - shell: 'date "+time %s.%N" > clock.log; echo steady >> clock.log; echo "1.$$"; cp all.txt copy.txt'
    inputs: [all.txt]
    outputs: [clock.log, copy.txt]
    stdout: number.dat
"""
DECLARED = """\
compare:
  - {files: "*.log", as: text, ignore: "^time "}
  - {files: "*.dat", as: numbers, tolerance: 0.9}
"""
OUTSIDE = """\
pilotage: 1
job: outside
stages:
  - {shell: "wc -c large.*", inputs: [large.dat], stdout: size.txt}  # a file that a command names would come with the job
"""
MORE = "  - {name: sum, shell: 'wc all.txt', inputs: [all.txt], stdout: sum.txt}\n"
DAG = "JOB a a.sub\nJOB b b.sub\nPARENT a CHILD b\n"
SUBMIT = "executable = ./say.sh\narguments = {0}\noutput = {0}.out\nqueue\n"


def prepare(place: Place) -> None:
    """Write programs, scripts and inputs."""
    (place.folder / "upper.sh").write_text(SCRIPT)
    (place.folder / "upper.sh").chmod(0o755)
    (place.folder / "text.txt").write_text("some words\n")


def run(place: Place, name: str, *words: str) -> str:
    """Run a document, and return the id of its job, whose record is made."""
    job: str = place.told("run", name, *words)["job"]
    place.run("provenance", "keep", job)
    return job


def verdicts(told: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["verdict"] for each in told["outputs"]}


def test_a_job_is_run_again_elsewhere_from_its_record_alone_and_from_a_crate(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    with place_in(tmp_path / "first") as first:
        prepare(first)
        first.document(SUM)
        job = run(first, "pilotage.yaml", "--set", "word=two")
        made = {name: (first.folder / name).read_bytes() for name in ("part-1.txt", "part-3.txt", "all.txt")}
        first.run("provenance", "export", job, "--to", "../crate.zip")
        first.run("serve", "--stop")
        shutil.copytree(first.state / "records", tmp_path / "copy")
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "again").mkdir()
    with place_in(tmp_path / "again") as again:
        again.run("provenance", "import", "../crate.zip")
        told = again.told("provenance", "rerun", job, "--here", "--records", "../copy")
        assert set(verdicts(told).values()) == {"identical"}
        assert set(verdicts(told)) == {"part-1.txt", "part-2.txt", "part-3.txt", "all.txt"}
        assert {each["state"] for each in told["inputs"]} == {"kept"}
        assert (told["same"], told["rerun_of"], told["software"], told["environment"]) == (True, job, [], [])
        folder = again.folder / f"rerun-{job}"
        assert {name: (folder / name).read_bytes() for name in made} == made
        assert "value: two" in (folder / "pilotage.yaml").read_text()
        in_the_way = again.run("provenance", "rerun", job, "--records", "../copy", code=2)
        assert "the folder exists already" in in_the_way.stderr
        told = again.told("provenance", "rerun", job, "--in", "from-crate")
        assert set(verdicts(told).values()) == {"identical"}
        assert (again.folder / "from-crate" / "all.txt").read_bytes() == made["all.txt"]


def test_what_differs_is_told_before_the_run_and_after_it_and_the_settings_here_name_the_variables(
    tmp_path: Path,
) -> None:
    (tmp_path / "first").mkdir()
    with place_in(tmp_path / "first") as place:
        (place.folder / "pilotage.toml").write_text('[provenance]\nvariables = ["LANG", "KEPT"]\n')
        place.environment |= {"LANG": "C", "KEPT": "a"}
        place.document("pilotage: 1\njob: one\nstages: [{shell: 'echo 1', stdout: one.txt}]\n")
        job = run(place, "pilotage.yaml")
        place.run("serve", "--stop")
        place.environment["LANG"] = "C.UTF-8"
        told = place.run("provenance", "rerun", job, "--here", "--in", "again").stdout
        assert "  this computer is not as recorded\n    variable LANG: C → C.UTF-8\n" in told
        assert "environment is not the same\n  variable LANG: C → C.UTF-8\n" in told  # told by the node
        del place.environment["KEPT"]
        place.environment["LANG"] = "C"
        told = place.told("provenance", "rerun", job, "--in", "unset")
        assert [(each["what"], each["after"]) for each in told["expected"]["environment"]] == [("variable KEPT", None)]
        assert (told["expected"]["sites"], told["expected"]["nodes"]) == (["local"], 1)
        place.environment["KEPT"] = "a"
        assert "  this computer is as recorded\n" in place.run("provenance", "rerun", job, "--in", "same").stdout


class Recorded:
    """A folder with jobs that are recorded."""

    def __init__(self, place: Place) -> None:
        """Run them."""
        self.place = place
        prepare(place)
        files = {
            "sum.yaml": SUM,
            "clock.yaml": CLOCK,
            "declared.yaml": CLOCK.replace("clock", "told").replace("copy", "same").replace("number", "random")
            + DECLARED,
            "outside.yaml": OUTSIDE,
            "say.dag": DAG,
            "a.sub": SUBMIT.format("a"),
            "b.sub": SUBMIT.format("b"),
            "say.sh": "#!/bin/sh\necho said $1\n",
        }
        for name, text in files.items():
            (place.folder / name).write_text(text)
        (place.folder / "say.sh").chmod(0o755)
        (place.folder / "large.dat").write_bytes(LARGE)
        self.sum = run(place, "sum.yaml")
        self.clock = run(place, "clock.yaml")
        self.declared = run(place, "declared.yaml")
        self.outside = run(place, "outside.yaml")
        self.dag = run(place, "say.dag")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with place_in(tmp_path_factory.mktemp("recorded")) as place:
        yield Recorded(place)


def test_the_time_is_a_difference_unless_a_comparison_is_declared(recorded: Recorded) -> None:
    told = recorded.place.told("provenance", "rerun", recorded.clock, code=1)
    assert verdicts(told) == {"clock.log": "different", "copy.txt": "identical", "number.dat": "different"}
    assert told["same"] is False
    shown = recorded.place.run("provenance", "rerun", recorded.declared).stdout
    assert "outputs: 1 identical, 2 equal" in shown
    assert "told.log (1.1.1) is equal" in shown
    assert f"the same again: {recorded.declared}" in shown
    assert "software and environment are the same" in shown


def test_another_comparison_runs_nothing_again(recorded: Recorded) -> None:
    document = recorded.place.folder / "declared.yaml"
    document.write_text(document.read_text().replace("0.9", "0.8"))
    assert "nothing to do" in recorded.place.run("run", "declared.yaml").stdout


def test_a_changed_or_missing_input_is_refused_by_name(recorded: Recorded) -> None:
    place = recorded.place
    place.run("provenance", "rerun", recorded.outside, "--in", "unchanged")
    assert (place.folder / "unchanged" / "size.txt").read_text() == "300000 large.dat\n"
    (place.folder / "large.dat").write_bytes(LARGE + b"y")
    refused = place.run("provenance", "rerun", recorded.outside, "--in", "changed", code=2).stderr
    assert "large.dat has changed" in refused
    assert not (place.folder / "changed").exists()
    (place.folder / "large.dat").unlink()
    assert "large.dat is missing" in place.run("provenance", "rerun", recorded.outside, code=2).stderr
    (place.folder / "given").mkdir()
    (place.folder / "given" / "large.dat").write_bytes(LARGE)
    assert place.told("provenance", "rerun", recorded.outside, "--in", "given")["same"]
    (place.folder / "used").mkdir()
    (place.folder / "used" / "large.dat").write_bytes(LARGE)
    (place.folder / "used" / "pilotage.yaml").write_text("mine")
    refused = place.run("provenance", "rerun", recorded.outside, "--in", "used", code=2).stderr
    assert "there is a pilotage.yaml already" in refused
    assert (place.folder / "used" / "pilotage.yaml").read_text() == "mine"
    (place.folder / "anyway").mkdir()
    (place.folder / "anyway" / "large.dat").write_bytes(b"other")
    told = place.told("provenance", "rerun", recorded.outside, "--in", "anyway", "--anyway", code=1)
    assert verdicts(told) == {"size.txt": "different"}
    assert [each["state"] for each in told["inputs"]] == ["changed"]


def test_one_package_and_a_job_of_dagman_are_run_again(recorded: Recorded) -> None:
    place = recorded.place
    told = place.told("provenance", "rerun", recorded.sum, "--package", "2.1.1")
    assert verdicts(told) == {"all.txt": "identical"}
    assert {each["name"]: each["state"] for each in told["inputs"]} == dict.fromkeys(
        ("part-1.txt", "part-2.txt", "part-3.txt"), "kept"
    )
    told = place.told("provenance", "rerun", recorded.sum, "--package", "1.2.1", "--here")
    assert verdicts(told) == {"part-2.txt": "identical"}
    refused = place.run("provenance", "rerun", recorded.sum, "--site", "nowhere", code=2).stderr
    assert "There is no site 'nowhere' here. Known are: local." in refused
    told = place.told("provenance", "rerun", recorded.dag, "--site", "local")
    assert verdicts(told) == {"a.out": "identical", "b.out": "identical"}
    assert place.told("provenance", "show", told["job"])["record"]["tags"]["rerun_of"] == recorded.dag


def test_a_package_that_does_not_end_alike_is_a_difference(recorded: Recorded) -> None:
    place = recorded.place
    switch = place.folder.parent / "switch"
    switch.touch()
    (place.folder / "switch.yaml").write_text(f"pilotage: 1\njob: switch\nstages: [{{run: [test, -e, {switch}]}}]\n")
    job = run(place, "switch.yaml")
    assert place.told("provenance", "rerun", job)["same"]
    switch.unlink()
    told = place.told("provenance", "rerun", job, "--package", "1.1.1", code=1)
    assert told["packages"] == [{"what": "1.1.1", "before": "DONE", "after": "ABORTED"}]


def test_traces_by_the_index_and_by_opening_every_record_are_the_same(recorded: Recorded, tmp_path: Path) -> None:
    place = recorded.place
    (place.folder / "more.yaml").write_text(SUM.replace("job: sum", "job: more") + MORE)
    run(place, "more.yaml", "--set", "word=one")
    copy = tmp_path / "records"
    shutil.copytree(place.state / "records", copy)
    with recorded_in(copy) as jobs:
        indexed = list(traced(jobs, "sum.txt", forward=False, lines_max=100))
        found = [each.job for each in indexed if each.package == "2.1.1"]
        assert found == [recorded.sum], "it adopted the results of the first job"
        forward = list(traced(jobs, f"{recorded.sum}/text.txt", forward=True, lines_max=1000))
    assert (copy / "index.sqlite").exists()
    (copy / "index.sqlite").unlink()
    (copy / "index.sqlite").mkdir()  # no index can be written
    with recorded_in(copy) as jobs:
        assert list(traced(jobs, "sum.txt", forward=False, lines_max=100)) == indexed
        assert list(traced(jobs, f"{recorded.sum}/text.txt", forward=True, lines_max=1000)) == forward


def test_two_jobs_are_compared(recorded: Recorded) -> None:
    place = recorded.place
    again = run(place, "sum.yaml", "--set", "word=three", "--replace")
    told = place.told("provenance", "diff", recorded.sum, again, code=1)
    assert told["parameters"] == [{"what": "word", "before": "one", "after": "three"}]
    assert (told["definition"], told["software"], told["environment"]) == ([], [], [])
    assert set(verdicts(told).values()) == {"different"}
    assert "job" in {each["what"] for each in told["timings"]}
    shown = place.run("provenance", "diff", recorded.dag, recorded.dag).stdout
    assert "definition: the same" in shown
    assert "outputs: 2 identical" in shown
    unknown = place.run("provenance", "diff", recorded.dag, "nobody", code=2).stderr
    assert "nobody" in unknown


def test_a_file_is_traced_across_jobs(recorded: Recorded) -> None:
    place = recorded.place
    shown = place.run("provenance", "trace", f"{recorded.clock}/copy.txt").stdout
    places = [line.split()[0] for line in shown.splitlines() if "/" in line.split()[0]]
    assert places[:2] == [f"{recorded.clock}/1.1.1", f"{recorded.sum}/2.1.1"]
    assert "text.txt" in shown
    assert "came with the submission" in shown
    forward = place.told("provenance", "trace", "text.txt", "--forward")["lines"]
    used = {(each["job"], each["package"]) for each in forward if each["kind"] == "package"}
    assert {(recorded.sum, "1.1.1"), (recorded.sum, "2.1.1"), (recorded.clock, "1.1.1")} <= used
    unmade = hashlib.sha256(b"nobody made this").hexdigest()
    assert len(place.told("provenance", "trace", unmade, code=1)["lines"]) == 1
    assert "no file here" in place.run("provenance", "trace", "nothing.txt", code=1).stderr


TOOL = """\
pilotage: 1
job: twin
software:
  - {id: tool, run: [sh, -c, "echo {n} > {n}.txt"], probe: echo version 7}
stages:
  - each: {n: 1..3}
    software: tool
    outputs: ["{n}.txt"]
"""


def test_two_runs_of_one_job_differ_in_nothing_but_times_whatever_else_ran_there(tmp_path: Path) -> None:
    with place_in(tmp_path, environment={"ZED": "1", "ALPHA": "2"}) as place:
        (tmp_path / "pilotage.toml").write_text('[provenance]\nvariables = ["ZED", "ALPHA"]\n')
        place.document(TOOL)
        first = place.told("run")["job"]
        place.run("provenance", "keep", first)
        place.seen("other.yaml").write_text(TOOL.replace("tool", "gadget").replace("twin", "odd"))
        place.run("run", "other.yaml", "--replace")  # its software is probed on the same node
        (tmp_path / "pilotage.toml").write_text('[provenance]\nvariables = ["ALPHA", "ZED"]\n')
        place.run("serve", "--stop")
        second = place.told("run", "--fresh", "--replace")["job"]
        place.run("provenance", "keep", second)
        found = place.told("provenance", "diff", first, second)
        assert found["same"]
        for what in ("definition", "parameters", "software", "environment", "packages"):
            assert found[what] == []
        assert {each["verdict"] for each in found["outputs"]} == {"identical"}
        assert [each["what"] for each in found["timings"]] == ["job", "tool"]
        report = place.told("provenance", "rerun", first)
        assert (report["same"], report["software"], report["environment"]) == (True, [], [])
