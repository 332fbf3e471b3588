"""What the test of a site makes of what the book tells of its pilot: which hop failed, why, and in whose words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pilotage.app.site_setup.testing import Hop, HopFailed, HopName, SiteTest
from pilotage.client import Server
from pilotage.model.settings.settings import Settings
from pilotage.model.sites.entry import SiteEntry

CHDIR = "error: can't chdir to /no/such/folder: No such file or directory"
STUCK = f"the batch system could not start it (Eqw): {CHDIR}"


class Begun:
    """A test that has begun, and what it has told so far."""

    def __init__(self, folder: Path) -> None:
        self.told: list[Hop] = []
        self.passed: set[HopName] = set()
        entry = SiteEntry(name="annex", kind="local")
        self.test = SiteTest(
            entry, settings=Settings(), folder=folder, seconds_max=60.0, tell=self.told.append, sleep=lambda _: None
        )

    def see(self, **pilot: Any) -> None:
        """Look at one pilot as the service tells of it."""
        row = {
            "pilot": "annex-1",
            "native_id": "7",
            "started_at": None,
            "ended_at": 5.0,
            "reason": None,
            "stderr": None,
        }
        told = {"noticed": [], "site": {"says": ""}}
        self.test._see(self.passed, told, [row | pilot], [])

    def lose(self, message: str, **attempt: Any) -> None:
        """Hear that the batch job of the package is gone."""

        class Book:
            def get(self, *_: object) -> dict[str, Any]:
                return {"events": [{"data": {"message": message}}]}

        self.test._lost(cast("Server", Book()), "j", self.passed, attempt)


@pytest.fixture
def tested(tmp_path: Path) -> Iterator[Begun]:
    found = Begun(tmp_path)
    yield found
    found.test._looks.close()


@pytest.mark.parametrize(
    "pilot, hop, message, words",
    [
        ({"reason": "platform-failure", "stderr": CHDIR}, "starts", "platform-failure", CHDIR),
        ({"reason": "failed", "stderr": CHDIR}, "python", "failed", CHDIR),
        ({"reason": "cancelled"}, "starts", "cancelled", ""),
        ({"reason": "bad-queue", "stderr": "no such queue", "native_id": ""}, "submit", "bad-queue", "no such queue"),
        ({"stderr": "pilotage-agent: no answer from the service"}, "server", "it ended", "pilotage-agent: no answer from the service"),
    ],
)  # fmt: skip
def test_a_pilot_that_ended_is_told_with_its_reason_and_its_words_at_the_hop_that_they_are_about(
    tested: Begun, pilot: dict[str, Any], hop: HopName, message: str, words: str
) -> None:
    with pytest.raises(HopFailed) as failed:
        tested.see(**pilot)
    assert (failed.value.hop, str(failed.value), failed.value.stderr) == (hop, message, words)
    before = [each.hop for each in tested.told]
    assert before == ["submit", "starts", "python"][: ["submit", "starts", "python", "server"].index(hop)]


@pytest.mark.parametrize(
    "words, attempt, hop, message",
    [
        (STUCK, {"native_id": "7", "lost_reason": "platform-failure"}, "starts", "platform-failure"),
        (CHDIR, {"native_id": "7", "lost_reason": "platform-failure"}, "python", "platform-failure"),
        (CHDIR, {"lost_reason": "platform-failure"}, "submit", "platform-failure"),
        (CHDIR, {"native_id": "7"}, "python", "it is lost"),
    ],
)
def test_a_package_whose_batch_job_is_gone_is_told_the_same_way(
    tested: Begun, words: str, attempt: dict[str, Any], hop: HopName, message: str
) -> None:
    with pytest.raises(HopFailed) as failed:
        tested.lose(words, **attempt)
    assert (failed.value.hop, str(failed.value), failed.value.stderr) == (hop, message, words)
