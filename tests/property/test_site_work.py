"""An agent of a site that dies at any moment, and the next one after it: nothing is submitted twice, and nothing is forgotten."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.agent.batch import Busy, Refused, Unknown, element_key
from pilotage.agent.batch.submitter import Listed
from pilotage.agent.silent_pilots import BatchJobNotice
from pilotage.agent.site.reconcile import Reconciler, Reports
from pilotage.agent.site.state_folder import FORGET_SECONDS, GONE, SiteRecords

SITE = "lyon"


class Killed(BaseException):
    """The agent is dead."""


class Cluster:
    """A batch system that keeps what it took, whatever becomes of who asked."""

    def __init__(self) -> None:
        self.taken: list[str] = []  # once for each submission
        self.running: dict[str, str] = {}
        self.ended: dict[str, str] = {}


class SubmitterOf:
    """A desk of one process; `fate` says what becomes of each of its calls."""

    def __init__(self, cluster: Cluster, fate: list[str]) -> None:
        self.cluster, self.fate = cluster, fate
        self.asked: list[tuple[str, str, int]] = []  # what, from which key on, and of how many

    def _next(self) -> str:
        return self.fate.pop(0) if self.fate else "well"

    def submit_pilots(self, key: str, count: int = 1) -> list[str]:
        self.asked.append(("submit", key, count))
        fate = self._next()
        if fate == "killed before":
            raise Killed
        if fate == "busy":
            raise Busy("full")
        if fate == "refused":
            raise Refused("bad-queue", "no such queue")
        if fate == "unknown, not queued":
            raise Unknown("no answer")
        natives = []
        for offset in range(count):
            each = element_key(key, offset)
            assert each is not None
            self.cluster.taken.append(each)
            self.cluster.running[each] = str(len(self.cluster.taken))
            natives.append(self.cluster.running[each])
        if fate == "killed after":
            raise Killed
        if fate == "unknown, queued":
            raise Unknown("no answer")
        return natives[: max(1, count // 2)] if fate == "half" else natives

    def submit_attempt(self, key: str, *, serves: str, demand: Mapping[str, Any]) -> str:
        return self.submit_pilots(key)[0]

    def cancel(self, *keys: str) -> None:
        self.asked.append(("cancel", keys[0], len(keys)))
        for key in keys:
            if key in self.cluster.running:
                self.cluster.ended[key] = self.cluster.running.pop(key)

    def listing(self, expected: Collection[str] = ()) -> dict[str, Listed]:
        if self._next() == "down":
            raise Unknown("no answer")
        found = {key: Listed(native) for key, native in self.cluster.running.items()}
        found.update({key: Listed(native, ended=True, reason="ended") for key, native in self.cluster.ended.items()})
        found.update({key: Listed("", ended=True, reason="vanished") for key in expected if key not in found})
        return found

    def notice(self, unheard: Collection[str]) -> list[BatchJobNotice]:
        return []


FATES = st.sampled_from(
    ["well", "well", "well", "killed before", "killed after", "busy", "unknown, queued", "unknown, not queued", "half", "down"]
)  # fmt: skip


def hears(wanted: list[str], expected: list[str], cancelled: Collection[str] = ()) -> dict[str, Any]:
    effects = [{"type": "submit-pilot", "site": SITE, "key": key} for key in wanted]
    effects += [{"type": "cancel-submitted", "site": SITE, "key": key} for key in cancelled]
    return {"expected": expected, "effects": effects, "entry": {"name": SITE}, "prefix": "p"}


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 12), unique=True, min_size=1, max_size=8),
    st.lists(FATES, max_size=30),
    st.sets(st.integers(1, 12), max_size=2),
)
def test_whatever_dies_when_nothing_is_doubled_and_all_comes_to_be_there(
    numbers: list[int], fates: list[str], cancelled: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster, fate = Cluster(), list(fates)
        wanted = [f"{SITE}-{number}" for number in sorted(numbers)]
        ending = [f"{SITE}-{number}" for number in sorted(cancelled)]
        expected: list[str] = []
        heard: dict[str, str] = {}
        for _ in range(60):
            # Each turn is another process, which knows what is on disk; the service repeats what it was not told of.
            memory = SiteRecords(Path(folder) / "memory.json")
            work = Reconciler(memory, settle_seconds=0.0)
            submitter = SubmitterOf(cluster, fate)
            asked = [key for key in wanted if key not in heard]
            memory.take_answer(hears(asked, expected, [key for key in ending if heard.get(key) != "gone"]))
            try:
                memory.save()
                work.look(submitter)
                work.act(submitter)
            except (Killed, Unknown):
                continue
            for report in Reports(memory, SITE).due():
                heard[report["key"]] = report["report"]
            expected = [key for key, state in heard.items() if state == "submitted"]
            if not fate and all(key in heard for key in wanted) and all(heard.get(key) == "gone" for key in ending):
                break
        assert len(cluster.taken) == len({*cluster.taken})
        for key in wanted:
            if key in ending:
                assert heard[key] == "gone"
                assert key not in cluster.running
            else:
                assert heard[key] == "submitted"
                assert key in cluster.running


def test_what_an_earlier_process_may_have_submitted_is_waited_for_before_it_is_submitted_again(tmp_path: Path) -> None:
    cluster = Cluster()
    memory = SiteRecords(tmp_path / "memory.json")
    memory.take_answer(hears([f"{SITE}-1"], []))
    work = Reconciler(memory, settle_seconds=1000.0)
    with suppress(Killed):
        work.act(SubmitterOf(cluster, ["killed before"]))
    again = SiteRecords(tmp_path / "memory.json")
    patient = Reconciler(again, settle_seconds=1000.0)
    patient.look(SubmitterOf(cluster, []))
    patient.act(SubmitterOf(cluster, []))
    assert cluster.taken == []
    settled = Reconciler(again, settle_seconds=0.0)
    settled.look(SubmitterOf(cluster, []))
    settled.act(SubmitterOf(cluster, []))
    assert cluster.taken == [f"{SITE}-1"]


def test_no_call_asks_for_more_than_a_hundred_pilots_or_cancels_more(tmp_path: Path) -> None:
    memory, submitter = SiteRecords(tmp_path / "memory.json"), SubmitterOf(Cluster(), [])
    keys = [f"{SITE}-{number}" for number in range(1, 251)]
    memory.take_answer(hears(keys, []))
    Reconciler(memory).act(submitter)
    memory.take_answer(hears([], keys, keys))
    Reconciler(memory).act(submitter)
    assert submitter.asked == [
        *(("submit", f"{SITE}-1", 100), ("submit", f"{SITE}-101", 100), ("submit", f"{SITE}-201", 50)),
        *(("cancel", f"{SITE}-1", 100), ("cancel", f"{SITE}-101", 100), ("cancel", f"{SITE}-201", 50)),
    ]


def test_what_is_refused_is_told_and_not_tried_again(tmp_path: Path) -> None:
    cluster = Cluster()
    memory = SiteRecords(tmp_path / "memory.json")
    memory.take_answer(hears([f"{SITE}-1", f"{SITE}-2"], []))
    work = Reconciler(memory)
    work.act(SubmitterOf(cluster, ["refused"]))
    work.act(SubmitterOf(cluster, []))
    told = Reports(memory, SITE).due()
    assert [(each["report"], each["key"], each["reason"]) for each in told] == [
        ("submission-failed", f"{SITE}-1", "bad-queue"),
        ("submission-failed", f"{SITE}-2", "bad-queue"),
    ]
    assert all(each["seconds"] > 0 for each in told)
    assert cluster.taken == []


def test_a_full_batch_system_is_asked_again_later_and_says_why(tmp_path: Path) -> None:
    cluster = Cluster()
    memory = SiteRecords(tmp_path / "memory.json")
    memory.take_answer(hears([f"{SITE}-1"], []))
    work = Reconciler(memory)
    work.act(SubmitterOf(cluster, ["busy"]))
    assert "accepts no more now: full" in work.message
    work.act(SubmitterOf(cluster, []))
    assert cluster.taken == []  # not at once
    assert memory.records == {}  # nothing was queued
    assert Reports(memory, SITE).due() == []


def test_what_has_ended_is_told_until_the_service_knows(tmp_path: Path) -> None:
    cluster = Cluster()
    memory = SiteRecords(tmp_path / "memory.json")
    key = f"{SITE}-1"
    memory.take_answer(hears([key], []))
    Reconciler(memory).act(SubmitterOf(cluster, []))
    (taken,) = Reports(SiteRecords(tmp_path / "memory.json"), SITE).due()
    assert (taken["report"], taken["seconds"] > 0) == ("submitted", True)
    cluster.ended[key] = cluster.running.pop(key)
    Reconciler(memory).look(SubmitterOf(cluster, []))
    for _ in range(2):  # each process says it anew
        again = SiteRecords(tmp_path / "memory.json")
        again.take_answer(hears([], [key]))
        reports = Reports(again, SITE)
        assert [each["report"] for each in reports.due()] == ["gone"]
        assert reports.due() == []  # but none of them over and over
    memory.take_answer(hears([], []))
    assert Reports(memory, SITE).due() == []


def test_what_the_service_does_not_speak_of_is_forgotten_after_a_while_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, key = 1000.0, f"{SITE}-1"
    monkeypatch.setattr("pilotage.agent.site.state_folder.time", SimpleNamespace(time=lambda: now))
    memory = SiteRecords(tmp_path / "memory.json")
    memory.note(key, GONE, reason="ended")
    memory.take_answer(hears([], []))
    now += FORGET_SECONDS
    memory.take_answer(hears([], [key]))  # it does again
    now += 1.0
    memory.take_answer(hears([], []))
    assert key in memory.records
    now += FORGET_SECONDS
    memory.take_answer(hears([], []))
    assert key in memory.records
    now += 1.0
    memory.take_answer(hears([], []))
    assert key not in memory.records


def test_a_memory_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    for content in ("", "nonsense", "[]", '{"records": {"a": 1}}', '{"records": []}'):
        file.write_text(content)
        assert SiteRecords(file).records == {}
