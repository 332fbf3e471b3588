"""What is known to differ before a recorded job runs again."""

from __future__ import annotations

import os
from collections.abc import Collection

import msgspec
import pytest

from pilotage.app.provenance.expected_environment import ExpectedEnvironment, expected_environment, this_node
from pilotage.model.records import RECORD_VERSION, JobRecord, RecordNode
from pilotage.model.version import VERSION

OLD = RecordNode(node="n1", site="lyon", cpu_model="Xeon", kernel="Linux 5", software={"python": "3.12", "gate": "9"})
NEW = msgspec.structs.replace(OLD, node="n2", kernel="Linux 6", software={"python": "3.13"})


def record_of(*nodes: RecordNode, made_by: str = VERSION) -> JobRecord:
    return JobRecord(
        version=RECORD_VERSION, job="j1", revision=1, owner="ada", name="j", state="DONE", made_at=1.0, made_by=made_by,
        sites=tuple(sorted({node.site for node in nodes})), nodes=nodes,
    )  # fmt: skip


def expected(
    record: JobRecord, *there: RecordNode, executor: str = "", known: Collection[str] = ("lyon",)
) -> ExpectedEnvironment:
    return expected_environment(record, executor=executor, known_sites=known, site_nodes=lambda _: there)


def test_what_one_of_the_nodes_of_a_site_has_is_not_told() -> None:
    found = expected(record_of(OLD), OLD, NEW)
    assert (found.sites, found.nodes, found.software, found.environment) == (("lyon",), 2, (), ())


def test_what_no_node_of_a_site_has_is_told_and_what_they_do_not_tell_is_not() -> None:
    found = expected(record_of(OLD, made_by="0.0.1"), NEW)
    assert [(each.what, each.before, each.after) for each in found.environment] == [
        ("kernel", "Linux 5", "Linux 6"),
        ("node", "n1", "n2"),
    ]
    assert [(each.what, each.before, each.after) for each in found.software] == [
        ("pilotage", "0.0.1", VERSION),
        ("python", "3.12", "3.13"),
    ]


def test_without_a_place_it_is_that_of_the_record_or_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "a")
    monkeypatch.delenv("GONE", raising=False)
    here = this_node(["KEPT"])
    assert (here.node, here.environment["KEPT"]) == (os.uname().nodename, "a")
    assert expected(record_of(here)).environment == ()
    assert expected(record_of(OLD), known=()).sites == ("local",)
    found = expected(record_of(msgspec.structs.replace(here, environment={"GONE": "b"})), executor="local")
    assert [(each.what, each.before, each.after) for each in found.environment] == [("variable GONE", "b", None)]


def test_of_a_site_without_a_known_node_nothing_is_said() -> None:
    found = expected(record_of(OLD, made_by="0.0.1"), executor="lyon")
    assert (found.nodes, found.environment) == (0, ())
