"""DAG files of HTCondor's DAGMan, run by the installed program: scripts, retries, ends, order, limits, and going on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, own_seconds, place_in, processes_with

# Every node says in `journal` when it begins and ends, and then does as its arguments say.
NODE = """\
#!/bin/sh
echo "begin $1" >> "$PILOTAGE_FOLDER/journal"
case "$2" in
    until) if [ ! -e "$PILOTAGE_FOLDER/$3" ]; then echo "lacks $3" >&2; exit 4; fi ;;
    third) [ "$PILOTAGE_ATTEMPT" -ge 3 ] || exit 1 ;;
    sleep) sleep "$3" ;;
    beside) until grep -q "begin $3" "$PILOTAGE_FOLDER/journal"; do sleep 0.02; done; exit "$4" ;;
    ?*) exit "$2" ;;
esac
echo "end $1" >> "$PILOTAGE_FOLDER/journal"
"""
SUBMIT = """\
universe = vanilla
executable = node.sh
arguments = $(JOB) $(what)
log = nodes.log
queue
"""
SCRIPT = """\
#!/bin/sh
echo "$1 $2 ${PILOTAGE_EXIT_STATUS-}" >> "$PILOTAGE_FOLDER/journal"
exit "${3:-0}"
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "dags"
    folder.mkdir()
    with place_in(folder) as place:
        write(place, {"node.sh": NODE, "node.sub": SUBMIT, "script.sh": SCRIPT})
        yield place


def write(place: Place, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = place.folder / name
        file.write_text(text)
        if text.startswith("#!"):
            file.chmod(0o755)


def dag(place: Place, text: str) -> None:
    write(place, {"work.dag": text})


def journal(place: Place) -> list[str]:
    return [line.strip() for line in (place.folder / "journal").read_text().splitlines()]


def begun(place: Place) -> list[str]:
    return [line.split()[1] for line in journal(place) if line.startswith("begin ")]


def test_scripts_run_around_a_node_and_the_exit_of_post_decides(place: Place) -> None:
    dag(
        place,
        """\
JOB A node.sub
VARS A what="6"
SCRIPT PRE A script.sh pre A
SCRIPT POST A script.sh post $RETURN
JOB B node.sub
VARS B what=""
SCRIPT POST B script.sh post B 7
RETRY B 0
JOB C node.sub
VARS C what=""
SCRIPT PRE C script.sh pre C 8
RETRY C 0
JOB D node.sub
VARS D what=""
PARENT A CHILD B C
PARENT B CHILD D
""",
    )
    told = place.told("run", "work.dag", "--slots", "1", code=1)
    # A failed and its POST was content; B was well and its POST was not; the PRE of C failed, so C did not begin.
    assert journal(place)[:3] == ["pre A", "begin A", "post 6 6"]
    assert sorted(journal(place)[3:]) == ["begin B", "end B", "post B 0", "pre C"]
    assert (told["done"], told["failed"]) == (1, 3)
    cards = {group["card"]["package"]: group["card"] for group in told["failures"]}
    assert sorted(card.get("exit_status", "") for card in cards.values() if card.get("attempt")) == [7, 8]


def test_a_node_is_tried_as_often_as_retry_says(place: Place) -> None:
    dag(
        place,
        """\
JOB A node.sub
VARS A what="third"
RETRY A 2
JOB B node.sub
VARS B what="5"
RETRY B 4
""",
    )
    told = place.told("run", "work.dag", code=1)
    assert (told["done"], told["failed"], told["healed"]) == (1, 1, 1)
    assert begun(place).count("A") == 3
    assert begun(place).count("B") == 5


ENDING = """\
JOB A node.sub
VARS A what=""
JOB B node.sub
VARS B what="beside C 3"
RETRY B 5
JOB C node.sub
VARS C what="sleep SECONDS"
JOB D node.sub
VARS D what=""
FINAL Z node.sub
VARS Z what=""
PARENT A CHILD B C
PARENT C CHILD D
"""


@pytest.mark.parametrize("command, code", [("ABORT-DAG-ON B 3 RETURN 17", 17), ("ABORT-DAG-ON B 3", 3)])
def test_a_node_ends_the_dag_and_the_final_node_runs(place: Place, command: str, code: int) -> None:
    seconds = own_seconds()
    dag(place, f"{ENDING.replace('SECONDS', seconds)}{command}\n")
    told = place.told("run", "work.dag", "--slots", "2", code=code)
    assert (told["done"], told["failed"], told["cancelled"], told["exit_code"]) == (2, 1, 2, code)
    assert sorted(begun(place)[1:-1]) == ["B", "C"]  # B is not tried again, and D never
    assert journal(place)[-2:] == ["begin Z", "end Z"]
    assert processes_with(seconds) == []
    said = place.told("explain", f"{told['job']}/3.1.1")  # D
    assert "which ends the job" in said["reasons"][0]["message"]


def test_the_exit_of_a_post_script_may_end_the_dag_and_so_may_success(place: Place) -> None:
    dag(
        place,
        """\
JOB A node.sub
VARS A what=""
SCRIPT POST A script.sh post A 9
JOB B node.sub
VARS B what=""
PARENT A CHILD B
ABORT-DAG-ON A 9 RETURN 0
""",
    )
    told = place.told("run", "work.dag")
    assert (told["failed"], told["cancelled"], told["exit_code"]) == (1, 1, 0)
    (place.folder / "journal").unlink()
    dag(place, 'JOB A node.sub\nVARS A what=""\nJOB B node.sub\nVARS B what=""\nPARENT A CHILD B\nABORT-DAG-ON A 0\n')
    told = place.told("run", "work.dag", "--fresh")
    assert (told["done"], told["cancelled"], begun(place)) == (1, 1, ["A"])
    # What is done is not what is left: the next run goes on behind it.
    told = place.told("run", "work.dag")
    assert (told["done"], told["adopted"], begun(place)) == (2, 1, ["A", "B"])


def test_a_higher_priority_goes_first_on_one_slot(place: Place) -> None:
    nodes = "".join(f'JOB N{n} node.sub\nVARS N{n} what=""\nPRIORITY N{n} {n}\n' for n in range(1, 6))
    dag(place, f'JOB First node.sub\nVARS First what=""\n{nodes}PARENT First CHILD N1 N2 N3 N4 N5\n')
    place.run("run", "work.dag", "--slots", "1")
    assert begun(place) == ["First", "N5", "N4", "N3", "N2", "N1"]


def test_no_more_of_a_category_run_than_maxjobs_says(place: Place) -> None:
    nodes = "".join(f'JOB N{n} node.sub\nVARS N{n} what="sleep 0.1"\nCATEGORY N{n} few\n' for n in range(1, 7))
    others = "".join(f'JOB M{n} node.sub\nVARS M{n} what="sleep 0.3"\n' for n in range(1, 5))
    dag(place, f"{nodes}{others}MAXJOBS few 2\n")
    place.run("run", "work.dag", "--slots", "8")
    assert most_at_once(journal(place), "N") == 2
    assert most_at_once(journal(place), "M") > 2


def most_at_once(lines: list[str], letter: str) -> int:
    running = most = 0
    for line in lines:
        word, name = line.split()
        if name.startswith(letter):
            running += 1 if word == "begin" else -1
            most = max(most, running)
    return most


def test_a_run_goes_on_where_the_one_before_failed(place: Place) -> None:
    dag(
        place,
        """\
JOB A node.sub
VARS A what=""
JOB B node.sub
VARS B what="until repaired"
RETRY B 0
JOB C node.sub
VARS C what=""
JOB D node.sub
VARS D what=""
FINAL Z node.sub
VARS Z what=""
PARENT A CHILD B C
PARENT B C CHILD D
""",
    )
    told = place.told("run", "work.dag", "--slots", "1", code=1)
    assert (told["done"], told["failed"]) == (3, 2)
    assert sorted(begun(place)) == ["A", "B", "C", "Z"]
    assert begun(place)[-1] == "Z"
    (place.folder / "journal").unlink()
    (place.folder / "repaired").touch()
    planned = place.told("plan", "work.dag")
    assert (planned["would_run"], planned["there"]) == (3, 2)
    told = place.told("run", "work.dag", "--slots", "1")
    assert (told["done"], told["adopted"]) == (5, 2)
    assert begun(place) == ["B", "D", "Z"]
    assert "nothing to do" in place.run("run", "work.dag").stdout


def test_nodes_beside_the_dag_are_refused_by_name(place: Place) -> None:
    dag(place, 'JOB A node.sub\nVARS A what=""\nSERVICE S node.sub\nPROVISIONER P node.sub\n')
    done = place.run("run", "work.dag", code=2)
    assert "role: service" in done.stderr
    assert "role: provisioner" in done.stderr
    assert not (place.folder / "journal").exists()


STAND_INS = {
    "x_echostring.pl": '#!/bin/sh\necho "$@"\n',
    "x_dagman_retry-monitor.pl": '#!/bin/sh\nexit "$1"\n',
    "job_dagman_abort-final-A-node-sleep.pl": "#!/bin/sh\nexec sleep SECONDS\n",
    "job_dagman_abort-final-A-nodeE-pre.pl": '#!/bin/sh\ntouch "$PILOTAGE_FOLDER/pre-of-E"\n',
    "job_dagman_abort-final-A-nodeE.pl": '#!/bin/sh\necho "$1 runs last"\n',
}


def test_a_dag_of_htcondor_s_own_tests_runs(place: Place, reference_data: Path) -> None:
    for file in (reference_data / "dagman/htcondor/condor_tests").glob("job_dagman_abort-final-A*"):
        shutil.copy(file, place.folder)
    seconds = own_seconds()
    write(place, {name: text.replace("SECONDS", seconds) for name, text in STAND_INS.items()})
    # C ends the DAG with 5, which counts as success; E is the final node, and C2 would sleep for hours.
    told = place.told("run", "job_dagman_abort-final-A.dag", "--slots", "2")
    assert (told["done"], told["failed"], told["cancelled"], told["result"]) == (3, 1, 2, 0)
    assert (place.folder / "job_dagman_abort-final-A-nodeE.out").read_text() == "E runs last\n"
    assert (place.folder / "pre-of-E").exists()
    assert (place.folder / "job_dagman_abort-final-A-node.B.out").read_text().endswith("B OK\n")
    assert processes_with(seconds) == []


def test_a_dag_of_a_tutorial_runs(place: Place, reference_data: Path) -> None:
    for file in (reference_data / "dagman/chtc-intro").iterdir():
        shutil.copy(file, place.folder)
    write(
        place,
        {
            "A.sh": "#!/bin/sh\necho from A\n",
            "B.sh": "#!/bin/sh\ncat A.out\necho from B\n",
            "A-check.sh": "#!/bin/sh\nexit 0\n",
        },
    )
    told = place.told("run", "my-first.dag")
    assert told["done"] == 2
    assert (place.folder / "B.out").read_text() == "from A\nfrom B\n"
