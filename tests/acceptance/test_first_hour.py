"""What a newcomer writes first works, or says in one line what to do: real services, agents and processes."""

from __future__ import annotations

from tests.kit.late_documents import late_document
from tests.kit.real_runs import Place

FIRST = late_document(
    "first",
    """\
  - each: {p: part-*.txt}
    run: sh twice.sh {p} points/{p.stem}.json
    inputs: ["{p}"]
    outputs: ["points/{p.stem}.json"]
""",
)


def test_a_late_script_a_folder_of_outputs_and_what_was_left_behind(place: Place) -> None:
    place.document(FIRST)
    (place.folder / "twice.sh").write_text('cat "$1" "$1" > "$2"\necho done > "fit-$(basename "$1" .txt).log"\n')
    told = place.run("run").stdout
    assert (place.folder / "points/part-2.json").read_text() == "2\n2\n"
    kept = 'outputs: ["points/{p.stem}.json", "fit-{p.stem}.log"]'
    assert f"to keep such files: {kept}\n" in told
    assert told.count("no output declares it") == 1
    # The script of the late stage is part of what its packages are known by.
    (place.folder / "twice.sh").write_text('cat "$1" "$1" "$1" > "$2"\n')
    told = place.run("run").stdout
    assert "left behind" not in told
    assert (place.folder / "points/part-1.json").read_text() == "1\n1\n1\n"


CHAIN = late_document(
    "chain",
    """\
  - {each: {p: part-*.txt}, run: 'cp {p} {p.stem}.out', inputs: ["{p}"], outputs: ["{p.stem}.out"]}
  - {each: {o: '*.out'}, run: 'cp {o} {o.stem}.end', inputs: ["{o}"], outputs: ["{o.stem}.end"]}
""",
)


def test_stages_over_the_files_of_a_stage_that_is_late_itself_come_to_an_end(place: Place) -> None:
    place.document(CHAIN)
    assert "DONE after" in place.run("run").stdout
    assert [(place.folder / f"part-{n}.end").read_text() for n in (1, 2)] == ["1\n", "2\n"]


def test_a_late_stage_that_cannot_be_laid_out_is_told_and_fails_the_run(place: Place) -> None:
    place.document(CHAIN.replace("{p.stem}.out", "one.out"))
    told = place.run("run", code=1).stdout
    assert "DONE with failures after" in told
    assert "given up: stage 2 cannot be expanded:" in told


BUG = """\
pilotage: 1
job: bug
stages:
  - name: fit
    each: {temp: [0.8, 1.2], field: [8, 16]}
    run: sh fit.sh {temp} {field} points-{temp}-{field}.json
    outputs: ["points-{temp}-{field}.json"]
"""
FIT = """\
test "$2" = 8 || { echo "no field $2" >&2; exit 3; }
echo "$1 $2" > "$3"
"""


def test_a_failure_is_told_by_name_parameters_and_command_and_packages_are_named_so(place: Place) -> None:
    place.document(BUG)
    (place.folder / "fit.sh").write_text(FIT)
    told = place.run("run", code=1).stdout
    assert "(fit-0_1 temp=0.8 field=16), attempt 3 at local" in told
    assert "    $ sh fit.sh 0.8 16 points-0.8-16.json\n" in told
    job = told.partition(":")[0]
    shown = place.run("status", "bug/fit-0_1").stdout
    assert shown.startswith(f"{job}/1.2.1: ABORTED\n")
    assert "given     temp=0.8 field=16\n" in shown
    explained = place.run("explain", "fit-1_1").stdout  # of the last job
    assert explained.startswith(f"{job}/1.4.1 (fit-1_1 temp=1.2 field=16): aborted\n  $ sh fit.sh 1.2 16 ")
    listed = place.run("query", f"job={job} and state=ABORTED").stdout
    assert "fit-0_1  temp=0.8 field=16  ABORTED" in listed
    logs = place.run("logs", "bug/fit-0_1")
    assert "no field 16" in logs.stdout
    assert "attempt 3 failed (application-error): 'sh' ended with exit code 3" in logs.stderr
    assert place.run("retry", "bug/fit-0_1").stdout == f"restarted {job}/1.2.1\n"
    assert f"{job} has no package called 'fit-9'" in place.run("retry", "bug/fit-9", code=2).stderr
    # Where no service runs, the book answers by the same names.
    place.run("serve", "--stop")
    assert place.run("status", "bug/fit-0_0").stdout.startswith(f"{job}/1.1.1: DONE\n  name      fit-0_0\n")


def test_map_prints_what_its_commands_write_in_the_order_of_the_items(place: Place) -> None:
    done = place.run("map", "--print", "--shell", "--job", "echo", "echo out {}; echo err {} >&2", "a", "b", "c")
    assert done.stdout.startswith("out a\nout b\nout c\necho-")
    assert [line for line in done.stderr.splitlines() if line.startswith("err")] == ["err a", "err b", "err c"]
    assert "--print cannot be combined" in place.run("map", "--print", "--json", "echo", "a", code=2).stderr
