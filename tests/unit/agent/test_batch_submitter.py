"""The desk of a batch system: nothing is started twice whatever gets lost, limits are met with fewer, ends are told once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence

import pytest

from pilotage.agent.batch import (
    Answer,
    BatchJob,
    BatchRequest,
    Busy,
    Call,
    Dialect,
    Limits,
    Refused,
    Unknown,
    element_key,
)
from pilotage.agent.batch.pilot_job import PilotJobTemplate
from pilotage.agent.batch.submitter import Listed, Submitter
from pilotage.agent.silent_pilots import AGAIN_SECONDS, READ_MAX, SILENT_SECONDS, BatchJobNotice

FOLDER = "/far/site"


class PlainDialect(Dialect):
    """A language that says what it means; the calls are understood by `PlainSystem`."""

    name = "plain"
    version_words = ("version",)
    version_pattern = r"plain (\S+)"

    def submit(self, wanted: BatchRequest) -> Call:
        return Call(("submit", wanted.key, str(wanted.count)))

    def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
        if answer.exit_status is None:
            raise Unknown("no answer")
        if answer.stderr.startswith("full"):
            raise Busy(answer.stderr, fewer="array" in answer.stderr)
        if answer.stderr:
            raise Refused("bad-queue", answer.stderr)
        return dict(line.split("=") for line in answer.stdout.split())

    def listing(self) -> Call:
        return Call(("list",))

    def listed(self, answer: Answer) -> dict[str, BatchJob]:
        if answer.exit_status != 0:
            raise Unknown("down")
        rows = (line.split() for line in answer.stdout.splitlines())
        return {key: _seen(native, state) for key, native, state in rows}

    def history(self, native_ids: Mapping[str, str]) -> Call | None:
        return Call(("history", *native_ids))

    def remembered(self, answer: Answer) -> dict[str, BatchJob]:
        return self.listed(answer)

    def cancel(self, native_ids: Mapping[str, str]) -> Call:
        return Call(("cancel", *(f"{key}={native}" for key, native in native_ids.items())))

    def errors(self, native_ids: Collection[str]) -> Call | None:
        return Call(("errors", *native_ids))

    def errors_told(self, answer: Answer) -> dict[str, str]:
        return dict(line.split("=") for line in answer.stdout.splitlines())

    def limits(self) -> list[Call]:
        return []

    def limited(self, answers: Sequence[Answer]) -> Limits:
        return Limits()


def _seen(native_id: str, state: str) -> BatchJob:
    if state.startswith("ended:"):
        return BatchJob(native_id, "ended", state.partition(":")[2], exit_status=73 if "failed" in state else 0)  # type: ignore[arg-type]
    if state == "error":
        return BatchJob(native_id, "queued", "error", detail="Eqw")
    if state.startswith("held:"):
        return BatchJob(native_id, "queued", "held", detail=state.partition(":")[2])
    return BatchJob(native_id, state)  # type: ignore[arg-type]


class PlainSystem:
    """A batch system that understands it, and a clock; what it is told to lose it does, and says nothing."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls: list[str] = []
        self.jobs: dict[str, list[str]] = {}  # native id and state, by key
        self.past: dict[str, list[str]] = {}
        self.files: dict[str, str] = {}
        self.answers = True  # to submissions
        self.takes = True
        self.up = True
        self.room = 10**6
        self.array_max = 10**6
        self.numbers = itertools.count(1)

    def run(self, call: Call) -> Answer:
        verb, *words = call.argv
        self.calls.append(" ".join(call.argv))
        if not self.up:
            return Answer(1, "", "down")
        return getattr(self, f"_{verb}")(*words, **({"stdin": call.stdin} if verb == "sh" else {}))  # type: ignore[no-any-return]

    def _submit(self, key: str, count: str) -> Answer:
        if int(count) > self.array_max:
            return Answer(1, "", "full: array too large")
        if int(count) > self.room:
            return Answer(1, "", "full")
        native_id = next(self.numbers)
        keys = [str(element_key(key, offset)) for offset in range(int(count))]
        if self.takes:
            assert not self.jobs.keys() & keys, "it was started twice"
            self.jobs.update((each, [f"{native_id}_{place}", "running"]) for place, each in enumerate(keys))
            self.room -= len(keys)
        if not self.answers:
            return Answer(None)
        return Answer(0, "\n".join(f"{each}={native_id}_{place}" for place, each in enumerate(keys)))

    def _version(self) -> Answer:
        return Answer(0, "plain 4.2\n")

    def _list(self) -> Answer:
        return Answer(0, "".join(f"{key} {native} {state}\n" for key, (native, state) in self.jobs.items()))

    def _history(self, *keys: str) -> Answer:
        return Answer(0, "".join(f"{key} {' '.join(self.past[key])}\n" for key in keys if key in self.past))

    def _errors(self, *native_ids: str) -> Answer:
        return Answer(0, "".join(f"{each}=no such folder\n" for each in native_ids if each != "9_0"))

    def _cancel(self, *pairs: str) -> Answer:
        for key, native_id in (pair.split("=") for pair in pairs):
            assert self.jobs[key][0] == native_id
            self.jobs[key][1] = "ended:cancelled"
        return Answer(0)

    def _sh(self, *, stdin: str) -> Answer:
        said = []
        for line in stdin.splitlines():
            read = re.fullmatch(r"tail -c [0-9]+ (\S+) 2>/dev/null", line)
            if read:
                said.append(self.files.get(read.group(1), ""))
            elif line.startswith("echo "):
                said.append(f"{line[5:]}\n")
            elif line.startswith("rm -f "):
                self.files.pop(line[6:], None)
            else:
                assert line in ("", "exit 0")
        return Answer(0, "".join(said))

    def count(self, verb: str) -> int:
        return sum(call.split()[0] == verb for call in self.calls)


class Scene:
    """A desk at a system."""

    def __init__(self) -> None:
        self.system = PlainSystem()
        self.noted: list[str] = []
        self.submitter = self.another()

    def another(self, unsure: Collection[str] = ()) -> Submitter:
        """A desk of a process that knows nothing of the first one."""
        job_template = PilotJobTemplate(site="lyon", folder=FOLDER, agent=f"{FOLDER}/agent.pyz", server="https://home")
        system = self.system
        return Submitter(
            PlainDialect("pilotage"),
            system.run,
            lambda: job_template,
            clock=lambda: system.now,
            unsure=unsure,
            note=lambda keys: self.noted.__setitem__(slice(None), list(keys)),
        )

    def later(self, seconds: float) -> None:
        self.system.now += seconds


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_system_tells_its_version(scene: Scene) -> None:
    assert scene.submitter.scheduler() == "plain 4.2"


def test_what_may_have_been_queued_without_an_answer_is_found_by_its_key_and_not_repeated(scene: Scene) -> None:
    scene.system.answers = False
    with pytest.raises(Unknown):
        scene.submitter.submit_pilots("lyon-7", 3)
    assert scene.noted == ["lyon-7", "lyon-8", "lyon-9"]
    scene.system.answers = True
    assert scene.submitter.submit_pilots("lyon-7", 3) == ["1_0", "1_1", "1_2"]
    assert scene.system.count("submit") == 1


def test_what_does_not_show_itself_for_a_while_is_submitted_again_and_not_before(scene: Scene) -> None:
    scene.system.answers = scene.system.takes = False
    with pytest.raises(Unknown):
        scene.submitter.submit_pilots("lyon-7")
    scene.system.answers = scene.system.takes = True
    scene.later(5.0)
    with pytest.raises(Unknown):
        scene.submitter.submit_pilots("lyon-7")
    assert scene.system.count("submit") == 1
    scene.later(6.0)
    assert scene.submitter.submit_pilots("lyon-7") == ["2_0"]
    assert scene.noted == []


def test_who_comes_after_one_that_died_while_it_submitted_waits_whether_that_arrives(scene: Scene) -> None:
    after = scene.another(unsure=["lyon-7"])
    with pytest.raises(Unknown):
        after.submit_pilots("lyon-7")
    scene.system.jobs["lyon-7"] = ["40", "queued"]  # it took its time
    assert after.submit_pilots("lyon-7") == ["40"]
    assert scene.system.count("submit") == 0


def test_fewer_are_asked_for_where_not_all_are_taken_and_those_that_are_there_are_not_asked_for(scene: Scene) -> None:
    scene.system.jobs["lyon-4"] = ["9", "queued"]
    scene.system.room = 3
    assert scene.submitter.submit_pilots("lyon-1", 8) == ["1_0", "1_1", "1_2", "9"]
    with pytest.raises(Busy):
        scene.submitter.submit_pilots("lyon-5", 4)
    scene.system.room = 100
    assert len(scene.submitter.submit_pilots("lyon-1", 8)) == 8


def test_an_array_that_is_too_large_is_not_tried_again(scene: Scene) -> None:
    scene.system.array_max = 30
    assert len(scene.submitter.submit_pilots("lyon-1", 100)) == 100
    calls = scene.system.count("submit")
    assert len(scene.submitter.submit_pilots("lyon-101", 50)) == 50
    assert (calls, scene.system.count("submit") - calls) == (6, 2)


def test_what_is_refused_is_raised_and_leaves_no_doubt(scene: Scene) -> None:
    def refuse(key: str, count: str) -> Answer:
        return Answer(1, "", "no such queue")

    scene.system._submit = refuse  # type: ignore[method-assign]
    with pytest.raises(Refused, match="no such queue"):
        scene.submitter.submit_pilots("lyon-1")
    assert scene.noted == []


def test_an_end_is_told_once_with_what_was_printed_and_the_file_is_removed(scene: Scene) -> None:
    scene.submitter.submit_pilots("lyon-1", 2)
    file = f"{FOLDER}/output/lyon-1.out"
    scene.system.files[file] = "no route to host"
    assert scene.submitter.listing() == {"lyon-1": Listed("1_0"), "lyon-2": Listed("1_1")}
    scene.system.jobs["lyon-1"][1] = "ended:wall-time"
    ended = Listed("1_0", ended=True, reason="wall-time", stderr="no route to host")
    assert scene.submitter.listing() == {"lyon-1": ended, "lyon-2": Listed("1_1")}
    assert scene.system.files == {}
    assert scene.submitter.listing() == {"lyon-2": Listed("1_1")}
    assert scene.system.count("history") == 0


def test_a_node_that_cannot_write_is_told_in_our_words(scene: Scene) -> None:
    scene.system.jobs["lyon-1"] = ["5", "ended:failed"]
    assert f"could not write to {FOLDER}/output" in scene.submitter.listing()["lyon-1"].stderr


def test_what_is_in_no_listing_any_more_is_asked_for_in_the_history(scene: Scene) -> None:
    scene.submitter.submit_pilots("lyon-1", 2)
    scene.system.jobs.clear()
    scene.system.past["lyon-1"] = ["1_0", "ended:out-of-memory"]
    listed = scene.submitter.listing(["lyon-0"])  # which an earlier process started
    assert listed["lyon-1"].reason == "out-of-memory"
    assert (listed["lyon-2"], listed["lyon-0"]) == (Listed("1_1"), Listed(""))  # accounts are written late
    assert scene.system.calls[-3] == "history lyon-1 lyon-2 lyon-0"
    scene.later(5.0)
    assert not any(each.ended for each in scene.submitter.listing(["lyon-0"]).values())
    assert scene.system.count("history") == 1
    scene.system.past["lyon-0"] = ["77", "ended:ended"]
    scene.later(11.0)
    listed = scene.submitter.listing(["lyon-0"])
    assert {key: (each.ended, each.reason) for key, each in listed.items()} == {
        "lyon-0": (True, "ended"),
        "lyon-2": (True, "vanished"),
    }
    assert scene.submitter.listing() == {}


def test_an_end_that_was_told_is_told_once_more_to_who_expects_it_anew(scene: Scene) -> None:
    scene.system.past["lyon-1"] = ["1_0", "ended:failed"]
    assert scene.submitter.listing(["lyon-1"])["lyon-1"].ended
    assert scene.submitter.listing(["lyon-1"]) == {}
    assert scene.submitter.listing() == {}
    assert scene.submitter.listing(["lyon-1"])["lyon-1"].ended


def test_a_system_that_is_down_tells_nothing_and_nothing_is_believed_to_have_ended(scene: Scene) -> None:
    scene.submitter.submit_pilots("lyon-1")
    scene.system.up = False
    with pytest.raises(Unknown):
        scene.submitter.listing(["lyon-1"])
    scene.system.up = True
    assert scene.submitter.listing(["lyon-1"]) == {"lyon-1": Listed("1_0")}


def test_what_is_cancelled_is_named_by_key_and_number_in_one_call(scene: Scene) -> None:
    scene.submitter.submit_pilots("lyon-1", 3)
    scene.submitter.cancel("lyon-1", "lyon-3", "nobody")
    assert scene.system.calls[-1] == "cancel lyon-1=1_0 lyon-3=1_2"
    scene.another().cancel("lyon-2")
    assert scene.system.calls[-1] == "cancel lyon-2=1_1"
    scene.submitter.cancel("nobody")
    assert scene.system.calls[-1] == "list"
    del scene.system.jobs["lyon-1"]  # an array that never began leaves but one trace
    listed = scene.submitter.listing()
    assert (listed["lyon-1"].reason, listed["lyon-3"].reason) == ("cancelled", "cancelled")
    assert scene.system.count("history") == 0


def test_a_limit_that_was_told_while_it_went_on_trying_makes_us_look_before_the_next_submission(scene: Scene) -> None:
    class Trying(PlainDialect):
        def submitted(self, wanted: BatchRequest, answer: Answer) -> dict[str, str]:
            if answer.exit_status is None:
                raise Busy("full, still trying")
            return super().submitted(wanted, answer)

    job_template = PilotJobTemplate(site="lyon", folder=FOLDER, agent="agent", server="https://home")
    submitter = Submitter(Trying("pilotage"), scene.system.run, lambda: job_template, clock=lambda: scene.system.now)
    scene.system.answers = False
    with pytest.raises(Busy):
        submitter.submit_pilots("lyon-1", 8)
    assert scene.system.count("submit") == 1  # each try takes a minute
    scene.system.answers = True
    assert len(submitter.submit_pilots("lyon-1", 8)) == 8
    assert scene.system.count("submit") == 1


def test_what_runs_and_does_not_speak_is_told_after_a_while_with_what_it_printed_which_is_not_read_at_each_look(
    scene: Scene,
) -> None:
    scene.submitter.submit_pilots("lyon-1", 2)
    scene.system.files[f"{FOLDER}/output/lyon-1.out"] = "no answer from the service\n"
    scene.submitter.listing()
    assert scene.submitter.notice(["lyon-1", "nobody"]) == []
    scene.later(SILENT_SECONDS - 1.0)
    assert scene.submitter.notice(["lyon-1"]) == []
    assert scene.system.count("sh") == 0
    scene.later(1.0)
    told = [BatchJobNotice("lyon-1", "running", "no answer from the service")]
    assert [scene.submitter.notice(["lyon-1"]) for _ in range(3)] == [told] * 3
    assert scene.system.count("sh") == 1
    scene.system.files[f"{FOLDER}/output/lyon-1.out"] = "HTTP 401\n"
    scene.later(AGAIN_SECONDS)
    scene.system.up = False  # what was read stays, where it cannot be read again
    assert scene.submitter.notice(["lyon-1"]) == told
    scene.system.up = True
    scene.later(AGAIN_SECONDS)
    assert scene.submitter.notice(["lyon-1"]) == [BatchJobNotice("lyon-1", "running", "HTTP 401")]
    assert scene.submitter.notice([]) == []  # it has spoken
    assert scene.system.files  # nothing is removed while it runs


def test_what_is_held_is_told_at_once_in_the_words_of_the_system_and_what_is_queued_is_not(scene: Scene) -> None:
    scene.submitter.submit_pilots("lyon-1", 3)
    for number, state in ((1, "held:PartitionTimeLimit"), (2, "queued")):
        scene.system.jobs[f"lyon-{number}"][1] = state
    scene.submitter.listing()
    assert scene.submitter.notice(["lyon-1", "lyon-2"]) == [BatchJobNotice("lyon-1", "held", "PartitionTimeLimit")]
    assert scene.submitter.notice(["lyon-2", "lyon-3"]) == []


def test_of_many_that_do_not_speak_some_are_read_and_all_are_told(scene: Scene) -> None:
    keys = [f"lyon-{number}" for number in range(1, 21)]
    scene.submitter.submit_pilots("lyon-1", 20)
    scene.system.files.update((f"{FOLDER}/output/{key}.out", "refused") for key in keys)
    scene.submitter.listing()
    scene.submitter.notice(keys)
    scene.later(SILENT_SECONDS)
    told = scene.submitter.notice(keys)
    assert [each.key for each in told] == keys
    assert sum(bool(each.words) for each in told) == READ_MAX
    assert scene.system.count("sh") == 1


def test_what_the_system_could_not_start_is_taken_out_and_has_ended_with_its_words(scene: Scene) -> None:
    scene.submitter.submit_pilots("lyon-1", 2)
    scene.system.jobs |= {"lyon-2": ["1_1", "error"], "lyon-3": ["9_0", "error"]}
    listed = scene.submitter.listing(["lyon-1", "lyon-2"])
    assert not listed["lyon-1"].ended
    assert listed["lyon-2"] == Listed(
        "1_1",
        ended=True,
        reason="platform-failure",
        stderr="the batch system could not start it (Eqw): no such folder",
        detail="the batch system could not start it (Eqw): no such folder",
    )
    assert listed["lyon-3"].stderr == "the batch system could not start it (Eqw): it does not say why"
    assert "cancel lyon-2=1_1 lyon-3=9_0" in scene.system.calls
    assert scene.submitter.notice(["lyon-2"]) == []
    scene.system.jobs = {"lyon-1": scene.system.jobs["lyon-1"]}
    assert [*scene.submitter.listing(["lyon-1"])] == ["lyon-1"]  # and is told once
