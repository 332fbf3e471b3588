"""Jobs that name contents of the service's own store: only those that their owners hold, whenever they are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotage.model.errors import DocumentError
from pilotage.service.jobs.refusals import KnownStores
from pilotage.service.jobs.submission import Prepared, expand_late_stage, prepare
from tests.kit.earlier_work import Place, place

NAMED = f"""
pilotage: 1
job: kept
software: [{{id: reco, run: reco, archives: [{{locator: 'store:{"c" * 64}'}}]}}]
stages:
  - software: reco
    inputs:
      - {{name: x, locator: 'store:{"a" * 64}'}}
      - {{name: y, locator: 'cache:farm/store:{"b" * 64}'}}
      - {{name: z, locator: 's3://bucket/z'}}
"""
LATE = """
pilotage: 1
job: late
stages:
  - run: go
    outputs: ["*.sha"]
  - each: {f: "*.sha"}
    run: read
    inputs: ["{f}", {name: in, locator: "store:{f.stem}"}]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


def prepared(here: Place, text: str, may_read: Callable[[str, str], bool]) -> Prepared:
    known = KnownStores(may_read=may_read)
    return prepare(
        here.submission(text), journal=here.journal, tree=here.tree, index=here.index, owner="ann", stores=known
    )


def test_contents_that_the_owner_does_not_hold_are_refused_by_name(here: Place) -> None:
    asked: list[tuple[str, str]] = []

    def may_read(sha256: str, user: str) -> bool:
        asked.append((sha256[0], user))
        return sha256[0] == "a"

    with pytest.raises(DocumentError) as refused:
        prepared(here, NAMED, may_read)
    told = [(each.code, each.message[:8], each.hint) for each in refused.value.problems]
    hint = "send the file: pilotage files put FILE"
    assert told == [("no-content", "store:bb", hint), ("no-content", "store:cc", hint)]
    assert asked == [("a", "ann"), ("b", "ann"), ("c", "ann")]
    assert prepared(here, NAMED, lambda *_: True).expansion.count == 1


def test_a_late_stage_names_only_contents_that_the_owner_holds(here: Place) -> None:
    sha256 = "d" * 64
    expansion = prepared(here, LATE, lambda *_: False).expansion

    def grown(owner: str) -> int:
        known = KnownStores(may_read=lambda digest, user: (digest, user) == (sha256, "ann"))
        produced = {0: [f"{sha256}.sha"]}
        return expand_late_stage(here.journal, expansion, stage=2, produced=produced, owner=owner, stores=known)[
            0
        ].count

    assert grown("ann") == 2
    with pytest.raises(DocumentError, match="not stored here, or not for bob"):
        grown("bob")
