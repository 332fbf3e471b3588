"""What follows from the record of a real job: what to run again, what differs from another, and what made a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest

from pilotage.model.jobs.definition import Comparison, Source
from pilotage.model.records import JobRecord, RecordNode, RecordPart
from pilotage.provenance.differences import (
    Difference,
    JobDifferences,
    compare_outputs,
    differences_of,
    environment_of,
    outputs_of,
)
from pilotage.provenance.history import FileUse, History, history_of
from pilotage.provenance.reconstruction import NotRepeatable, reconstruct
from pilotage.provenance.trace import Direction, TraceLine, file_in_job, trace_back, trace_forward
from tests.kit.real_records import recorded_survey


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with recorded_survey(tmp_path_factory.mktemp("survey")) as (store, record):
        yield history_of(record, store.content)


# --- what to run again ---


def test_a_whole_job_is_run_again_with_the_files_that_nothing_in_it_makes(history: History) -> None:
    found = reconstruct(history)
    assert [(each.name, each.kept, each.executable) for each in found.files] == [
        ("large.dat", False, False),
        ("split.sh", True, True),
        ("text.txt", True, False),
    ]
    assert all(each.sha256 for each in found.files)
    assert found.definition == history.job.definition
    assert found.lists == history.lists
    assert found.compared is None


def test_a_package_is_run_again_with_the_values_and_files_of_its_iteration(history: History) -> None:
    found = reconstruct(history, package="2.2.1", executor="local")
    (stage,) = found.definition.stages
    (line,) = stage.lines
    assert stage.name == "count"
    assert line.each == Source(variable="part", values=("part-2.txt",))
    assert line.packages[0].executor == "local"
    assert [each.name for each in found.files] == ["part-2.txt"]
    assert found.compared == frozenset({"2.2.1"})
    assert found.lists is None
    by_name = reconstruct(history, package="total")
    assert [each.name for each in by_name.files] == ["part-1.count", "part-2.count"]
    assert by_name.compared == frozenset({"3.1.1"})


def test_what_cannot_be_run_again_is_refused(history: History) -> None:
    with pytest.raises(NotRepeatable, match="no package 'nobody'"):
        reconstruct(history, package="nobody")
    other = History(
        history.record, msgspec.structs.replace(history.job, definition=None), history.lists, history._opened
    )
    with pytest.raises(NotRepeatable, match="has no definition"):
        reconstruct(other)
    captured = {"../outside": next(iter(history.job.captured.values()))}
    hostile = History(
        history.record, msgspec.structs.replace(history.job, captured=captured), history.lists, history._opened
    )
    with pytest.raises(NotRepeatable, match="leads out of the job's tree"):
        reconstruct(hostile)


# --- what differs ---


def nothing(_file: FileUse) -> bytes | None:
    return None


def differ(before: History, after: History) -> JobDifferences:
    return differences_of(before, after, read_before=nothing, read_after=nothing)


def test_a_job_does_not_differ_from_itself(history: History) -> None:
    found = differ(history, history)
    assert found.same
    assert {each.verdict for each in found.outputs} == {"identical"}
    assert [each.name for each in found.outputs] == sorted(
        ["all.txt", "part-1.count", "part-1.txt", "part-2.count", "part-2.txt", "total.txt"]
    )
    assert {each.what for each in found.timings} >= {"job", "split.sh", "counting", "cat"}
    assert all(each.before == each.after for each in found.timings)
    assert (found.definition, found.parameters, found.software, found.environment) == ((), (), (), ())


def with_record(history: History, record: JobRecord) -> History:
    return History(record, history.job, history.lists, history._opened)


def test_other_nodes_and_versions_are_told(history: History) -> None:
    (node,) = history.nodes
    moved = RecordNode(node="far", site="cluster", os_release="Other 1", software={"python": "3.14.0"})
    other = with_record(history, msgspec.structs.replace(history.record, nodes=(moved,), made_by="9.9"))
    found = differ(history, other)
    assert not found.same
    assert Difference(what="node", before=node.node, after="far") in found.environment
    assert Difference(what="os", before=node.os_release, after="Other 1") in found.environment
    assert Difference(what="python", before=node.software["python"], after="3.14.0") in found.software
    assert [each.after for each in found.software if each.what == "pilotage"] == ["9.9"]
    site = RecordPart(kind="environment", name="sites/cluster.json", sha256="0" * 64, size_bytes=1)
    configured = with_record(history, msgspec.structs.replace(history.record, parts=(*history.record.parts, site)))
    assert differ(history, configured).environment == (
        Difference(what="sites/cluster.json", before=None, after=f"sha256 {'0' * 12}"),
    )
    both = with_record(history, msgspec.structs.replace(history.record, nodes=(node, moved)))
    assert environment_of(both)["node"] == ", ".join(sorted((node.node, "far")))


def test_software_that_the_job_did_not_use_and_probes_that_told_one_side_nothing_are_no_differences(
    history: History,
) -> None:
    (node,) = history.nodes
    told = {**node.software, "gadget": "of another job", "tool": "unknown: its probe took too long"}
    beside = msgspec.structs.replace(node, software=told)
    twice = (beside, msgspec.structs.replace(beside, site="other"))  # the same node, described twice
    for nodes in ((beside,), (msgspec.structs.replace(node, software={}),)):
        other = with_record(history, msgspec.structs.replace(history.record, nodes=nodes))
        assert (differ(history, other).same, differ(other, history).same) == (True, True)
    both = with_record(history, msgspec.structs.replace(history.record, nodes=twice))
    assert differ(history, both).software == ()


def test_another_definition_and_other_parameters_are_told_by_their_paths(history: History) -> None:
    changed = history.job.definition_text.replace("wc -w", "wc -c")
    job = msgspec.structs.replace(history.job, definition_text=changed, parameters={"limit": "3"})
    found = differ(history, History(history.record, job, history.lists, history._opened))
    assert [each.what for each in found.definition] == ["stages[2].lines[1].packages[1].binaries[1].shell"]
    assert found.parameters == (Difference(what="limit", before="2", after="3"),)
    assert not found.same


def test_outputs_are_compared_by_checksum_and_then_by_what_is_declared(history: History) -> None:
    before = outputs_of(history)
    contents = {"all.txt": b"1.0\n", "total.txt": b"a"}

    def other(name: str) -> tuple[str, FileUse]:
        return before[name][0], msgspec.structs.replace(before[name][1], sha256="0" * 64)

    after = {name: other(name) if name in ("all.txt", "total.txt", "part-1.txt") else before[name] for name in before}
    del after["part-2.txt"]
    after["late.txt"] = other("all.txt")
    declared = (Comparison(files=("all.txt", "part-*"), compared_as="numbers"),)
    found = {
        each.name: each
        for each in compare_outputs(
            before,
            after,
            declared,
            read_before=lambda file: contents.get(file.name),
            read_after=lambda _file: b"1",
        )
    }
    assert {name: each.verdict for name, each in found.items()} == {
        "all.txt": "equal",
        "late.txt": "new",
        "part-1.count": "identical",
        "part-1.txt": "unknown",
        "part-2.count": "identical",
        "part-2.txt": "missing",
        "total.txt": "different",
    }
    assert "the content of the first run is not there" in found["part-1.txt"].difference
    assert found["all.txt"].package == "3.1.1"


# --- what made a file, and what used it ---


class Recorded:
    """Some opened records by the files of their jobs."""

    def __init__(self, *histories: History) -> None:
        self._histories = {each.job.id: each for each in histories}

    def jobs_with_file(self, sha256: str, direction: Direction) -> Sequence[str]:
        return [
            job
            for job, history in self._histories.items()
            if any(
                file.sha256 == sha256 and file.direction == direction
                for package in history.packages()
                for file in package.files
            )
        ]

    def history(self, job: str) -> History | None:
        return self._histories.get(job)


def shown(lines: Iterator[TraceLine]) -> list[str]:
    return ["  " * each.depth + (each.package or each.name) + ("^" if each.followed_above else "") for each in lines]


def test_a_file_is_traced_to_what_it_was_made_of(history: History) -> None:
    total = file_in_job(history, "total.txt")
    assert total is not None
    lines = list(trace_back(Recorded(history), [(history.job.id, total)]))
    assert shown(iter(lines)) == [
        "total.txt",
        "  3.1.1",
        "    part-1.count",
        "      2.1.1",
        "        part-1.txt",
        "          1.1.1",
        "            text.txt",
        "            large.dat",
        "            split.sh",
        "    part-2.count",
        "      2.2.1",
        "        part-2.txt",
        "          1.1.1^",
    ]
    origins = {each.name: each.origin for each in lines if each.kind == "file"}
    assert (origins["text.txt"], origins["large.dat"], origins["total.txt"]) == ("captured", "outside", "package")
    assert lines[1].command == "cat part-1.count part-2.count && wc -l"
    assert lines[1].site == "local"


def test_a_file_is_traced_by_its_checksum_alone_and_a_trace_has_an_end(history: History) -> None:
    total = file_in_job(history, "total.txt")
    assert total is not None
    unnamed = FileUse(name="copies/total.txt", direction="produced", source="outside", sha256=total.sha256)
    lines = list(trace_back(Recorded(history), [("", unnamed)], lines_max=3))
    assert [each.package for each in lines][:2] == ["", "3.1.1"]
    assert [each.cut for each in lines] == [False, False, False, True]
    assert shown(trace_back(Recorded(), [("", unnamed)])) == ["copies/total.txt"]


def test_a_file_is_traced_to_what_was_made_of_it(history: History) -> None:
    text = file_in_job(history, "text.txt")
    assert text is not None
    assert shown(trace_forward(Recorded(history), [(history.job.id, text)])) == [
        "text.txt",
        "  1.1.1",
        "    part-1.txt",
        "      2.1.1",
        "        part-1.count",
        "          3.1.1",
        "            all.txt",
        "            total.txt",
        "              4.1.1",
        "    part-2.txt",
        "      2.2.1",
        "        part-2.count",
        "          3.1.1^",
    ]
