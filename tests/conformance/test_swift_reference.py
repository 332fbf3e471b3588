"""A published log of Swift: the same operations give the same scores, line by line, to the digits that Swift wrote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilotage.engine.selection.scores import Operation, Score
from pilotage.model.settings.engine import SelectionSettings

LOG = "swift/tests_log-processing_logs_first-r2522.log"
KINDS: dict[str, Operation] = {
    "FILE_OPERATION": "file-operation",
    "FILE_TRANSFER": "transfer",
    "JOB_SUBMISSION": "submission",
}
CHANGED = re.compile(r"WeightedHostScoreScheduler multiplyScore\(.*, (-?[\d.]+)\)$")
SCORED = re.compile(r"WeightedHostScoreScheduler Old score: (-?[\d.]+), new score: (-?[\d.]+)$")
MOVED = re.compile(r"TaskImpl Task\(type=(\w+), identity=([\w:-]+)\) setting status to (\w+)$")
SUBMITTED = re.compile(r"Submission time for Task\(type=JOB_SUBMISSION, identity=([\w:-]+)\): (\d+)ms\.")
FINISHED = re.compile(r"WeightedHostScoreScheduler commitDelayedScore\(\S+:(-?[\d.]+)\(([\d.]+)\):")
TRANSFORMED = re.compile(r"localhost:(-?[\d.]+)\(([\d.]+)\)")


@pytest.fixture(scope="module")
def lines(reference_data: Path) -> list[str]:
    """The log."""
    return (reference_data / LOG).read_text(encoding="utf-8").splitlines()


class Replay:
    """Follows a log: an operation is scored if a load was taken before it is submitted; some are on no site and are not."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.loads_taken = 0  # by operations that did not say yet what they are
        self.scored: dict[str, Operation] = {}
        self.unscored: set[str] = set()
        self.ended: list[Operation] = []
        self.jobs = 0

    def read(self, line: str) -> None:
        if found := CHANGED.search(line):
            self.loads_taken += float(found[1]) < 0
        elif found := MOVED.search(line):
            self.moved(KINDS[found[1]], found[2], found[3])
        elif found := SUBMITTED.search(line):
            assert found[1] in self.scored
            self.score.submitted(int(found[2]) / 1000)
        elif FINISHED.search(line):
            self.jobs += 1
            self.score.succeeded()

    def moved(self, kind: Operation, identity: str, status: str) -> None:
        if status == "Submitting":
            if not self.loads_taken:
                self.unscored.add(identity)
                return
            self.loads_taken -= 1
            self.scored[identity] = kind
            self.score.began(kind)
        elif status == "Completed" and identity in self.scored:
            kind = self.scored.pop(identity)
            self.score.ended(kind)
            self.ended.append(kind)


def settings() -> SelectionSettings:
    """As that version of Swift had them."""
    return SelectionSettings(submission_seconds_base=0.5)


def test_the_log_of_a_real_run_ends_at_its_score(lines: list[str]) -> None:
    replay = Replay(Score(settings(), 0.0))
    for line in lines:
        replay.read(line)
    assert f"{replay.score.value:.5f}" == "1.20513"
    assert replay.ended.count("file-operation") == 6
    assert replay.ended.count("transfer") == 3
    assert replay.ended.count("submission") == 2
    assert (replay.jobs, len(replay.unscored), replay.scored, replay.loads_taken) == (1, 2, {}, 0)


def test_at_rest_the_score_is_what_swift_wrote(lines: list[str]) -> None:
    # Swift logs each step of an end by itself, we take them together: they meet where nothing is under way.
    replay, written, compared = Replay(Score(settings(), 0.0)), "0.000", 0
    for line in lines:
        if CHANGED.search(line) and not replay.scored and "-0." in line.rpartition(",")[2]:
            assert f"{replay.score.value:.3f}" == written
            compared += 1
        replay.read(line)
        if found := SCORED.search(line):
            written = found[2]
        elif found := FINISHED.search(line):
            written = f"{float(found[1]) + settings().success:.3f}"
    assert f"{replay.score.value:.3f}" == written
    assert compared == 11


def test_under_load_the_score_is_what_swift_wrote(lines: list[str]) -> None:
    replay, compared = Replay(Score(settings(), 0.0)), 0
    taken = ""
    for line in lines:
        if (found := SCORED.search(line)) and float(found[2]) < float(found[1]):
            taken = found[2]
        replay.read(line)
        moved = MOVED.search(line)
        if moved and moved[3] == "Submitting" and moved[2] in replay.scored:
            assert f"{replay.score.value:.3f}" == taken
            compared += 1
    assert compared == 11


def test_every_tscore_follows_from_its_score(lines: list[str]) -> None:
    # Swift wrote the score with three digits: the TScore must lie between those of the two ends of that interval.
    compared = 0
    for line in lines:
        for found in TRANSFORMED.finditer(line):
            low, high = (Score(settings(), float(found[1]) + by).tscore for by in (-0.0005, 0.0005))
            assert low - 0.0005 <= float(found[2]) <= high + 0.0005
            compared += 1
    assert compared > 30


def test_with_the_base_of_the_later_version_it_ends_elsewhere(lines: list[str]) -> None:
    replay = Replay(Score(SelectionSettings(), 0.0))
    for line in lines:
        replay.read(line)
    assert f"{replay.score.value:.5f}" == "1.20101"
