"""What the logs of attempts promise: every text comes back as it was, until its job is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.adapters.stores.logs import SqliteLogs
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.exchange.exchange import AttemptRef, LogText
from pilotage.ports import AttemptLogs, StoreError
from tests.kit.made_work import log


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[AttemptLogs]:
    """No logs yet."""
    made = SqliteLogs(WorkDatabase(tmp_path))
    yield made
    made.close()


def test_logs_come_back_in_order_and_the_later_text_replaces_the_earlier(logs: AttemptLogs) -> None:
    logs.put([log(2, "stdout", "second"), log(1, "stderr", "bad"), log(1, "stdout", "half")])
    logs.put([log(1, "stdout", "whole"), log(1, "stdout", "x", package="1.1.2"), log(1, "stdout", "y", job="k")])
    assert [(each.ref.attempt, each.stream, each.head) for each in logs.read("j", "1.1.1")] == [
        (1, "stdout", "whole"),
        (1, "stderr", "bad"),
        (2, "stdout", "second"),
    ]
    assert logs.read("unknown", "1.1.1") == []


def test_the_logs_of_a_job_are_read_by_package_however_many_there_are(logs: AttemptLogs) -> None:
    packages = [f"1.{line}.1" for line in range(1, 701)]
    logs.put([log(1, stream, package, package=package) for package in packages for stream in ("stderr", "stdout")])
    logs.put([log(1, "stdout", "y", job="k"), log(2, "stdout", "again", package="1.2.1")])
    found = [(each.ref.package, each.ref.attempt, each.stream, each.head) for each in logs.read_job("j")]
    assert found[:2] == [("1.1.1", 1, "stderr", "1.1.1"), ("1.1.1", 1, "stdout", "1.1.1")]
    assert found[4] == ("1.2.1", 2, "stdout", "again")
    assert [package for package, attempt, stream, _ in found if (attempt, stream) == (1, "stdout")] == packages
    assert list(logs.read_job("unknown")) == []


def test_the_logs_of_a_job_are_forgotten_alone(logs: AttemptLogs) -> None:
    logs.put([log(1, "stdout", "x"), log(1, "stdout", "y", job="k")])
    logs.forget("j")
    logs.forget("unknown")
    assert logs.read("j", "1.1.1") == []
    assert len(logs.read("k", "1.1.1")) == 1


def test_any_text_of_a_log_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory) -> None:
    logs = SqliteLogs(WorkDatabase(tmp_path_factory.mktemp("state")))

    @given(head=st.text(max_size=600), tail=st.text(max_size=20), dropped=st.integers(0, 2**40), final=st.booleans())
    def holds(head: str, tail: str, dropped: int, *, final: bool) -> None:
        told = LogText(
            ref=AttemptRef("j", "1.1.1", 1), stream="stdout", head=head, tail=tail, dropped_bytes=dropped, final=final
        )
        logs.put([told])
        assert logs.read("j", "1.1.1") == [told]

    holds()
    logs.put([log(1, "stdout", "a\0b\udc80")])
    assert logs.read("j", "1.1.1")[0].head == "a\0b\udc80"
    logs.close()


def test_a_log_of_no_package_does_not_lose_the_others(logs: AttemptLogs) -> None:
    told = [LogText(ref=AttemptRef("j", package, 1), stream="stdout", head=package) for package in ("x", "1.1.1")]
    logs.put(told)
    assert logs.read("j", "1.1.1") == told[1:]
    with pytest.raises(StoreError):
        logs.put([LogText(ref=AttemptRef("j", "1.1.1", 2**63), stream="stdout", head="")])
