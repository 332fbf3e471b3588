"""Tells the engine which outputs stay in the cache of the site where they were made, as their document says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from pilotage.language import Expansion
from pilotage.language.stored_outputs import handled_outputs
from pilotage.language.text.locators import job_locator
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.file_plan import RetainedOutput
from pilotage.service.works.manifests import Manifest, Manifests

_REMEMBERED_MAX = 1000  # manifests of attempts that wait for a grant; others are read from the book


class KnownJob(Protocol):
    """A job whose packages are known."""

    expansion: Expansion

    def number(self, package: str) -> int | None:
        """The number of the package at a dotted place."""
        ...


class KeptOutputs:
    """The output keeper of an engine, asked in the engine's thread."""

    def __init__(self, jobs: Callable[[str], KnownJob | None], manifests: Manifests) -> None:
        """Take what finds a job, and the manifests of its attempts."""
        self._jobs = jobs
        self._manifests = manifests
        self._made: OrderedDict[AttemptRef, Manifest] = OrderedDict()

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Remember the files that an attempt has staged: the book has them only when they are durable."""
        self._made[ref] = tuple(manifest)
        while len(self._made) > _REMEMBERED_MAX:
            self._made.popitem(last=False)

    def retained(self, ref: AttemptRef) -> list[RetainedOutput]:
        """The outputs of an attempt that are kept, and how long."""
        manifest = self._made.pop(ref, None) or self._manifests.of(ref) or ()
        job = self._jobs(ref.job)
        number = job.number(ref.package) if job is not None else None
        if job is None or number is None or not manifest:
            return []
        handled = handled_outputs(job.expansion, number, [file.name for file in manifest], job=ref.job, archives=())
        return [
            RetainedOutput(
                locator=job_locator(ref.job, file.name),
                size_bytes=file.size_bytes,
                sha256=file.sha256,
                wish=output.retained,
            )
            for file, output in zip(manifest, handled, strict=True)
            if output.retained is not None
        ]
