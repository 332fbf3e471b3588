"""What jobs are run for, and what of that they have not made: a pattern of an output promises no name."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from pilotage.book.rows import JobRow, PackageFacts
from pilotage.model.exchange import AttemptRef
from pilotage.model.progress import UnmadeTarget
from pilotage.model.submission import TARGETS
from pilotage.ports import Journal

if TYPE_CHECKING:
    from pilotage.language import Expansion
    from pilotage.language import UnmadeTarget as Unmade
    from pilotage.service.wording import Wording

_lists = msgspec.json.Decoder(dict[str, str])
_names = msgspec.json.Decoder(tuple[str, ...])
_ENDED = {"ABORTED": "failed", "CANCELLED": "was cancelled"}


class Targets:
    """The targets of jobs. Any thread may ask."""

    def __init__(self, journal: Journal, wording: Wording) -> None:
        """Have jobs from a journal, and how they are laid out from `wording`."""
        self._journal = journal
        self._wording = wording
        self._read = lru_cache(maxsize=1024)(self._read_content)

    def of(self, job: JobRow) -> tuple[str, ...]:
        """The files that a job is run for, or patterns of them; none: everything that it makes."""
        if f'"{TARGETS}"' not in job.lists:  # most have none
            return ()
        sha256 = _lists.decode(job.lists).get(TARGETS)
        return self._read(sha256) if sha256 is not None else ()

    def unmade(self, job: JobRow) -> tuple[UnmadeTarget, ...]:
        """Those of which a job that is over has made nothing, and why."""
        expansion = self._wording.layout(job) if self.of(job) else None
        if expansion is None:
            return ()
        from pilotage.language import unmade_targets
        from pilotage.service.running.manifests import Manifests

        manifests = Manifests(self._journal)

        def made(number: int) -> list[str]:
            facts = self._facts(job, expansion, number)
            attempt = facts.attempts.get(facts.attempt or 0) if facts is not None else None
            if facts is None or attempt is None or attempt.granted_at is None:
                return []
            ref = AttemptRef(job.job, expansion.id(number).dotted, facts.attempt or 0)
            return [file.name for file in manifests.of(ref) or ()]

        return tuple(
            UnmadeTarget(target=each.target, why=self._why(job, expansion, each))
            for each in unmade_targets(expansion, made)
        )

    def stages_left_out(self, job: JobRow) -> frozenset[int]:
        """The stages of a job of which its targets need nothing."""
        expansion = self._wording.layout(job) if self.of(job) else None
        if expansion is None:
            return frozenset()
        from pilotage.language import stages_left_out

        return stages_left_out(expansion)

    def _why(self, job: JobRow, expansion: Expansion, unmade: Unmade) -> str:
        if len(unmade.packages) > 1:
            return f"none of the {len(unmade.packages):,} packages that could have made it has"
        if unmade.packages:
            (number,) = unmade.packages
            name = f"{expansion.id(number).dotted} ({expansion.name(number)})"
            facts = self._facts(job, expansion, number)
            how = _ENDED.get(facts.state if facts is not None else job.state)
            return f"{name}, which could have made it, {how or 'has not'}"
        stages = " and ".join(f"{stage} ({expansion.stage_names[stage - 1]})" for stage in unmade.stages)
        waits = {late.stage for late in expansion.late} & {*unmade.stages}
        how = "was never laid out" if waits else "was laid out without it"
        return f"stage {stages}, of which it could have come, {how}" if stages else ""

    def _facts(self, job: JobRow, expansion: Expansion, number: int) -> PackageFacts | None:
        row = self._journal.package(job, expansion.id(number))
        return row.facts if row is not None else None

    def _read_content(self, sha256: str) -> tuple[str, ...]:
        content = self._journal.content(sha256)
        return _names.decode(content) if content is not None else ()
