"""Two jobs of one folder that would make the same file."""

from __future__ import annotations

import pytest

from pilotage.language import Expansion, MemoryFolder, load
from pilotage.ports import NotOurs
from pilotage.service.running.rivals import refuse_rivals


def expanded(outputs: str) -> Expansion:
    text = f"pilotage: 1\njob: j\nstages:\n  - each: {{n: 1..9}}\n    run: make {{n}}\n    outputs: [{outputs}]\n"
    return load(text.encode(), file="job.yaml", folder=MemoryFolder(())).job().expansion


def test_a_name_that_another_unfinished_job_makes_is_refused_with_the_job_that_does() -> None:
    with pytest.raises(
        NotOurs, match=r"the job other is not over and makes the same: a-1, a-2, a-3, a-4, a-5 and 4 more"
    ):
        refuse_rivals(expanded("'a-{n}'"), "/data", [("first", expanded("'b-{n}'")), ("other", expanded("'a-{n}'"))])


def test_other_names_and_patterns_are_nobodys_rivals() -> None:
    refuse_rivals(expanded("'a-{n}'"), "/data", [("first", expanded("'b-{n}'")), ("late", expanded("'a-{n}-*'"))])
    refuse_rivals(expanded("'a-{n}'"), "/data", [])
