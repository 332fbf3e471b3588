"""What people are told of the files of a job that are on their way: how far they are, and why the next try is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine
    from pilotage.service.transfers.ledger import TransferStatus

TOLD_AFTER_SECONDS = 4.0
"""Transfers that take less need no word; lines of progress come every five seconds."""


class FilesMoving(msgspec.Struct, frozen=True, kw_only=True):
    """`summary` tells how far the transfers are, `trouble` why the first one that failed is tried again."""

    summary: str = ""
    trouble: str = ""


def files_moving(
    engine: Engine, job: str, under_way: Sequence[TransferStatus], unreliable: Sequence[str] = ()
) -> FilesMoving:
    """The transfers that a job waits for, of all that are under way; `unreliable` tells the stores that failed lately."""
    from pilotage.engine.files.queries import fetched_for

    fetches = [
        each
        for each in under_way
        if each.kind == "fetch" and fetched_for(engine.state, job, site=each.site, key=each.key)
    ]
    copies = [each for each in under_way if each.kind == "store" and each.job == job]
    faults = [
        *(
            f"{each.locator} has not come to {each.site} yet; the last try failed: {each.fault}"
            for each in fetches
            if each.fault
        ),
        *(f"{each.locator} is not stored yet; the last try failed: {each.fault}" for each in copies if each.fault),
        *(
            f"copies go to other stores, as far as there are some, while a store fails: {each}"
            for each in unreliable
            if copies
        ),
    ]
    return FilesMoving(
        summary=", ".join(filter(None, (_summary("fetching", fetches), _summary("storing", copies)))),
        trouble=faults[0] if faults else "",
    )


def _summary(doing: str, transfers: Iterable[TransferStatus]) -> str:
    slow = [each for each in transfers if each.seconds >= TOLD_AFTER_SECONDS]
    if not slow:
        return ""
    sizes = [each.total_bytes for each in slow if each.total_bytes is not None]
    done = size_text(sum(each.bytes_done for each in slow))
    far = f"{done} of {size_text(sum(sizes))}" if len(sizes) == len(slow) else done
    return f"{doing} {len(slow)} {'file' if len(slow) == 1 else 'files'} ({far})"
