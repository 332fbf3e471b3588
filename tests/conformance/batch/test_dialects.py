"""The suite: what is submitted runs once under its key, whatever the words; what is not known is not guessed."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from pilotage.agent.batch import CANNOT_WRITE_STATUS, BatchRequest, Busy, Refused, Unknown
from tests.conformance.batch.system import System

TELL = "import os, sys; print(ascii((os.environ['PILOTAGE_REQUEST'], sys.argv[1:], os.getcwd())))"
ODD_WORDS = [
    "two  words", "", "'single'", '"double"', "$(exit 9)", "`exit 9`", "$HOME", "back\\slash", "*", "~", "#$ -q nowhere",
    "first\nsecond", "first\n#SBATCH --bad\n#$ -bad\n#PBS -bad\n#BSUB -bad\n", "\ttab", "carriage\r\nreturn", "\n", ";", "&",
    "naïve 猫", "100%", "%j", "a,b", "=", "-n", "--help", "!", "{}", "[x]", "\udcff",
]  # fmt: skip


def wanted(system: System, key: str, *command: str, **options: object) -> BatchRequest:
    """Something small to start, whose output lies in the system's folder."""
    made = {"key": key, "command": command, "folder": str(system.folder), "output": str(system.folder), **options}
    return BatchRequest(**made)  # type: ignore[arg-type]


def test_what_is_submitted_runs_and_ends(system: System) -> None:
    gate = system.folder / "gate"
    os.mkfifo(gate)
    native_id = system.submit(wanted(system, "one-1", "sh", "-c", "read line < gate"))["one-1"]
    assert native_id
    seen = system.wait("one-1", "running")
    assert seen.native_id == native_id
    assert seen.reason == ""
    assert seen.node
    gate.write_text("on\n")
    ended = system.wait("one-1", "ended", native_id)
    assert (ended.native_id, ended.reason, ended.node) == (native_id, "ended", seen.node)
    assert ended.exit_status == 0


def test_what_fails_says_so(system: System) -> None:
    native_id = system.submit(wanted(system, "bad-1", "sh", "-c", "echo this is why >&2; exit 3"))["bad-1"]
    ended = system.wait("bad-1", "ended", native_id)
    assert ended.reason == "failed"
    assert ended.exit_status == (3 if system.tells_exit_status else None)
    assert system.printed("bad-1") == "this is why\n"


def test_what_has_nowhere_to_print_starts_nothing_and_says_so(system: System) -> None:
    native_id = system.submit(wanted(system, "mute-1", "touch", "started", output=str(system.folder / "absent")))[
        "mute-1"
    ]
    ended = system.wait("mute-1", "ended", native_id)
    assert ended.reason == "failed"
    assert ended.exit_status == (CANNOT_WRITE_STATUS if system.tells_exit_status else None)
    assert not (system.folder / "started").exists()


def test_an_array_is_one_submission_and_each_element_knows_its_key(system: System) -> None:
    keys = ["many-8", "many-9", "many-10"]
    ids = system.submit(wanted(system, "many-8", sys.executable, "-c", TELL, count=3))
    assert list(ids) == keys
    for key in keys:
        assert system.printed(key) == repr((key, [], str(system.folder))) + "\n"
    ended = {key: system.wait(key, "ended", ids[key]) for key in keys}
    assert {each.reason for each in ended.values()} == {"ended"}
    assert {key: each.native_id for key, each in ended.items()} == ids


def test_a_lost_answer_is_found_again_by_key(system: System) -> None:
    lost = wanted(system, "lost-1", "sleep", "600", count=2)
    system.run(system.dialect.submit(lost))
    found = {key: system.wait(key, "running").native_id for key in ("lost-1", "lost-2")}
    system.cancel(found)
    for key, native_id in found.items():
        assert system.wait(key, "ended", native_id).reason == system.cancelled_reason
    system.cancel(found)  # what is not there any more need not be ended


def test_only_what_has_both_key_and_id_is_cancelled(system: System) -> None:
    ids = system.submit(wanted(system, "stay-1", "sleep", "600", count=2))
    ids |= system.submit(wanted(system, "stay:else", "sleep", "600"))
    for key in ids:
        assert system.wait(key, "running").native_id == ids[key]
    # After a crash, another job may have the number that something of ours had before.
    with suppress(Unknown):
        system.cancel({"gone-1": ids["stay-2"], "gone:else": ids["stay:else"]})
    system.cancel({"stay-1": ids["stay-1"]})
    assert system.wait("stay-1", "ended", ids.pop("stay-1")).reason == system.cancelled_reason
    for key in ids:
        assert system.wait(key, "running").native_id == ids[key]
    system.cancel(ids)
    for key in ids:
        system.wait(key, "ended", ids[key])


@pytest.mark.parametrize("key", ["01JCQ8:1.2.3:1", "ünï'\"$x /_"])
def test_odd_keys_and_words_arrive_as_they_are(system: System, key: str) -> None:
    native_id = system.submit(wanted(system, key, sys.executable, "-c", TELL, *ODD_WORDS))[key]
    assert system.printed(key) == ascii((key, ODD_WORDS, str(system.folder))) + "\n"
    assert system.wait(key, "ended", native_id).reason == "ended"


def test_things_of_another_prefix_are_not_ours(system: System) -> None:
    mine = system.submit(wanted(system, "here-1", "sleep", "600"))["here-1"]
    system.wait("here-1", "running")
    theirs = type(system.dialect)(f"{system.dialect.prefix}x")
    assert theirs.listed(system.run(theirs.listing())) == {}
    theirs.cancelled(system.run(theirs.cancel({"here-1": mine})))
    assert system.wait("here-1", "running").native_id == mine
    system.cancel({"here-1": mine})
    system.wait("here-1", "ended", mine)


def test_an_unknown_queue_is_refused_and_nothing_is_there(system: System) -> None:
    if system.bad_queue is None:
        with pytest.raises(ValueError, match="no queues"):
            system.submit(wanted(system, "queue-1", "true", queue="any"))
        return
    with pytest.raises(Refused) as refused:
        system.submit(wanted(system, "queue-1", "true", queue=system.bad_queue))
    assert refused.value.reason == "bad-queue"
    seen = system.look("queue-1")
    assert seen is None or seen.state == "ended"


def test_a_limit_is_not_an_error(system: System) -> None:
    with pytest.raises(Busy) as busy:
        system.submit(wanted(system, "limit-1", "true", count=system.too_many))
    assert busy.value.fewer
    assert system.look("limit-1") is None


def test_the_limits_of_the_site_are_told(system: System) -> None:
    limits = system.dialect.limited([system.run(call) for call in system.dialect.limits()])
    assert bool(limits.queues) == system.has_queues
    assert all(queue.name and queue.cores for queue in limits.queues)


def test_the_system_is_known_by_its_version(system: System) -> None:
    assert system.dialect.version(system.run(system.dialect.is_here()))[0].isdigit()


def test_a_wall_time_is_kept_and_told(system: System) -> None:
    key, native_id = system.overrun()
    assert system.wait(key, "ended", native_id).reason == "wall-time"


def test_down_means_unknown(system: System) -> None:
    native_id = system.submit(wanted(system, "down-1", "sleep", "600"))["down-1"]
    system.wait("down-1", "running")
    dialect, other = system.dialect, wanted(system, "down-2", "true")
    with system.is_down():
        listed, submitted, cancelled, *limits = system.all(
            dialect.listing(), dialect.submit(other), dialect.cancel({"down-1": native_id}), *dialect.limits()
        )
    with pytest.raises(Unknown):
        dialect.listed(listed)
    with pytest.raises(Unknown):
        dialect.submitted(other, submitted)
    with pytest.raises(Unknown):
        dialect.cancelled(cancelled)
    if system.has_queues:
        with pytest.raises(Unknown):
            dialect.limited(limits)
    # What was written last may be lost, and what ran be started anew: a crash is not gentle. But it answers.
    seen = dialect.listed(system.run(dialect.listing())).get("down-1")
    if seen is not None:
        system.cancel({"down-1": seen.native_id})
