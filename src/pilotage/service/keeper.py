"""The keeper: checks batches, joins them with the book, and acknowledges what is durable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.intake import JobsSealed
from pilotage.book.join import SKEW_SECONDS, Joined, Receipt, join
from pilotage.book.ledger import Ledger
from pilotage.model.events import Event
from pilotage.ports import Clock, Journal, JournalError, SealedLost
from pilotage.service.courtesy import Courtesy

Afterwards = Callable[[Joined, Ledger], None]
"""What else happens in the transaction of a batch, such as noting whom to tell."""


class OwnRefused(JournalError):
    """The book refuses what this service itself has decided: another one wrote it, or the book is not what it was.

    Nothing of it was kept. The service stops; start it again, and it goes on from what the book says.
    """


class Batch(msgspec.Struct, frozen=True):
    """The well-formed events of one request, and what was refused of it already."""

    checked: Sequence[Checked]
    refused: Sequence[Refusal] = ()
    skewed: Collection[tuple[str, str]] = ()  # (source, stream): who sent these has a clock that is proven wrong
    own: bool = False  # it has what this service decided or did: all of it is kept, or the service must not go on


class Keeper:
    """Takes batches of events into a journal, one at a time. Threads take turns outside."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        codec: Codec | None = None,
        within: Sequence[Afterwards] = (),
        skew_seconds: float = SKEW_SECONDS,
    ) -> None:
        """Keep the book of a journal."""
        self._journal = journal
        self._clock = clock
        self.codec = codec if codec is not None else Codec()
        self._within = tuple(within)
        self._skew_seconds = skew_seconds
        self._courtesy = Courtesy()

    def take(self, events: Sequence[Event]) -> Receipt:
        """Take events in that never were text."""
        checked, refused = self.codec.check_all(events)
        return self.keep(checked, refused)

    def take_batch(self, body: bytes) -> Receipt:
        """Take a batch in as it came over the wire."""
        checked, refused, _ = self.codec.read_batch(body)
        return self.keep(checked, refused)

    def keep(self, checked: Sequence[Checked], refused: Sequence[Refusal] = ()) -> Receipt:
        """Keep well-formed events; when this returns, whatever is not refused is durable."""
        [receipt] = self.keep_together([Batch(checked, refused)])
        return receipt

    def keep_together(self, batches: Sequence[Batch]) -> list[Receipt]:
        """Keep batches in one transaction, each with a receipt of its own. All are kept, or none.

        Raises `OwnRefused` where the book refuses something that the service itself has decided.
        """
        while True:
            try:
                receipts = self._keep_together(batches)
            except JobsSealed as sealed:
                for job in sealed.jobs:
                    try:
                        self._journal.unseal([job])
                    except SealedLost as lost:
                        if any(batch.own and _is_about(batch, job) for batch in batches):
                            raise
                        # One job whose file is lost must not keep everybody else's events out.
                        batches = [_without(batch, job, str(lost)) for batch in batches]
            else:
                return [_with_refused(receipt, batch.refused) for receipt, batch in zip(receipts, batches, strict=True)]

    def _keep_together(self, batches: Sequence[Batch]) -> list[Receipt]:
        receipts: list[Receipt] = []
        with self._journal.transaction() as ledger:
            for batch in batches:
                now = self._clock.now()
                joined = join(
                    ledger,
                    batch.checked,
                    received=now,
                    codec=self.codec,
                    skew_seconds=self._skew_seconds,
                    skewed=batch.skewed,
                )
                if batch.own and joined.receipt.refused:
                    raise _own_refused(batch, joined.receipt.refused)
                self._courtesy.give_way()
                ledger.write(joined.changes)
                self._courtesy.give_way()
                for each in self._within:
                    each(joined, ledger)
                receipts.append(joined.receipt)
        return receipts


def _own_refused(batch: Batch, refused: Sequence[Refusal]) -> OwnRefused:
    return OwnRefused(
        f"the book refuses {len(refused)} of {len(batch.checked)} events of this service itself: {refused[0].message}",
        next_step="see that no other service writes this book, and start this one again: it goes on from what the book says",
    )


def _is_about(batch: Batch, job: str) -> bool:
    return any(one.event.job == job for one in batch.checked)


def _without(batch: Batch, job: str, why: str) -> Batch:
    """A batch in which the events of a job are refused."""
    gone = [one for one in batch.checked if one.event.job == job]
    refused = [
        Refusal(index=one.index, code="purged", message=f"nothing more can be kept of it: {why}") for one in gone
    ]
    left = [one for one in batch.checked if one.event.job != job]
    return Batch(left, [*batch.refused, *refused], batch.skewed, batch.own)


def _with_refused(receipt: Receipt, refused: Sequence[Refusal]) -> Receipt:
    if not refused:
        return receipt
    everything = sorted((*refused, *receipt.refused), key=lambda one: one.index)
    return msgspec.structs.replace(receipt, refused=everything)
