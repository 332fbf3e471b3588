"""Subscriptions: created, listed, refreshed, rebound and dropped by their owners, with their queued notices.

The changes of a batch become notices in the batch's transaction, so a notice is exactly as durable as the events that
caused it. Notices are read in a transaction of the same writer: a reader is woken while the batch is being written, and
sees it when it is committed.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from pilotage.book.fold.join import Joined
from pilotage.book.notices.notices import Number, plain
from pilotage.book.notices.subscriptions import ActiveSubscription, Matching, SubscriptionError, wanted
from pilotage.book.query import canonical
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import JobRow
from pilotage.book.rows.tables import TABLE_BY_ROW, NoticeRow, SubscriptionRow, WatchedRow
from pilotage.model.errors import PilotageError, did_you_mean
from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import Clock, Journal, Notifier
from pilotage.reading.access import ANY_OWNER, READ, Principal, may, require_scope

log = logging.getLogger(__name__)

POLL = "poll"
MAIL = "mail"
SUBSCRIPTIONS_MAX = 100
"""Per owner: every batch is matched against each of them."""

SECRET_MIN, SECRET_MAX = 16, 256

_WATCHED_KEY = TABLE_BY_ROW[WatchedRow].key


class UnknownSubscription(PilotageError):
    """There is no such subscription of yours, or it has expired: then subscribe again."""


class TooManySubscriptions(PilotageError):
    """An owner has too many subscriptions: drop one, or widen the query of another."""


class NotPolled(PilotageError):
    """The notices of this subscription are sent to an address; rebind it to `poll` to fetch them."""


class SubscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to subscribe: what to be notified of, and how."""

    query: str = ""
    target: str = "packages"
    states: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    validity_seconds: float | None = None
    transport: str = POLL
    address: str = ""
    secret: str = ""


class _ActiveSubscription(msgspec.Struct):
    """A subscription, ready to be matched against batches; `waiting` if there may be notices to send."""

    row: SubscriptionRow
    live: ActiveSubscription
    waiting: bool = True


class Subscriptions:
    """The subscriptions of a journal. Any thread may use it; `note` belongs to the transaction of each batch."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        settings: NotificationSettings,
        notifiers: Mapping[str, Notifier],
    ) -> None:
        """Load the subscriptions; `notifiers` are the transports besides `poll`, by name."""
        self._journal = journal
        self._clock = clock
        self._settings = settings
        self.notifiers = notifiers
        self._guard = threading.RLock()
        self._known: dict[str, _ActiveSubscription] = {}
        self._matching = Matching(())
        self._stale = True
        self._written = 0  # counts changes to subscriptions
        self._listeners: tuple[Callable[[str], None], ...] = ()
        self._refresh_known()

    # --- for their owners ---

    def create(self, principal: Principal, asked: SubscriptionRequest) -> SubscriptionRow:
        """Subscribe; the row has the secret that signs webhooks."""
        require_scope(principal, READ)
        self._check_binding(asked.transport, asked.address, asked.secret)
        what = wanted(target=asked.target, query=asked.query, states=asked.states, attributes=asked.attributes)
        now = self._clock.now()
        row = SubscriptionRow(
            subscription=secrets.token_hex(12),
            owner=principal.user,
            principal=_stored(principal),
            target=what.target.value,
            query=canonical(what.query),
            states=json.dumps(sorted(what.states)),
            attributes=json.dumps(what.attributes),
            transport=asked.transport,
            address=asked.address,
            secret=asked.secret or secrets.token_urlsafe(32),
            created_at=now,
            expires_at=now + self._validity(asked.validity_seconds),
        )
        with self._transaction() as ledger:
            if sum(known.row.owner == principal.user for known in self._live_ones()) >= SUBSCRIPTIONS_MAX:
                raise TooManySubscriptions(
                    f"{principal.user} has {SUBSCRIPTIONS_MAX} subscriptions, which is the limit",
                    next_step="drop one, or widen the query of another",
                )
            self._put(ledger, row)
        return row

    def of(self, principal: Principal) -> list[SubscriptionRow]:
        """The subscriptions of a principal, oldest first."""
        require_scope(principal, READ)
        self._refresh_known()
        with self._guard:
            found = [known.row for known in self._live_ones() if known.row.owner == principal.user]
        return sorted(found, key=lambda row: (row.created_at, row.subscription))

    def get(self, principal: Principal, subscription: str) -> SubscriptionRow:
        """One of them; raises `UnknownSubscription`."""
        require_scope(principal, READ)
        self._refresh_known()
        with self._guard:
            known = self._known.get(subscription)
            if known is not None and known.row.owner == principal.user and known.row.expires_at > self._clock.now():
                return known.row
        mine = [row.subscription for row in self.of(principal)]
        raise UnknownSubscription(
            "there is no such subscription, or it has expired",
            subject=f"subscription {plain(subscription, length_max=64)}",
            next_step=did_you_mean(subscription[:64], mine) if mine else "subscribe again: POST /v1/subscriptions",
        )

    def drop(self, principal: Principal, subscription: str) -> None:
        """End a subscription and discard its queued notices."""
        with self._transaction() as ledger:
            self._remove(ledger, self.get(principal, subscription))

    def refresh(self, principal: Principal, subscription: str, *, validity_seconds: float | None) -> SubscriptionRow:
        """Set a new end of validity, counted from now."""
        with self._transaction() as ledger:
            row = self.get(principal, subscription)
            until = self._clock.now() + self._validity(validity_seconds)
            row = msgspec.structs.replace(row, expires_at=until, principal=_stored(principal))
            self._put(ledger, row)
        return row

    def rebind(
        self, principal: Principal, subscription: str, *, transport: str, address: str, secret: str = ""
    ) -> SubscriptionRow:
        """Send queued and future notices elsewhere; at once, whatever failed before."""
        self._check_binding(transport, address, secret)
        with self._transaction() as ledger:
            row = self.get(principal, subscription)
            row = msgspec.structs.replace(
                row,
                principal=_stored(principal),
                transport=transport,
                address=address,
                secret=secret or row.secret,
                binding=row.binding + 1,
                attempts=0,
                next_at=0.0,
                fault="",
            )
            self._put(ledger, row)
            self._wake(subscription)
        return row

    def notices(self, principal: Principal, subscription: str, *, after: Number, limit: int) -> list[NoticeRow]:
        """The queued notices of a polled subscription after a number."""
        with self._transaction() as ledger:
            self._polled(principal, subscription)
            key = (subscription, *after)
            return ledger.find_rows(NoticeRow, having={"subscription": subscription}, after=key, limit=limit)

    def acknowledge(self, principal: Principal, subscription: str, *, through: Number) -> None:
        """Discard the notices that a client has, up to and including a number."""
        with self._transaction() as ledger:
            self._polled(principal, subscription)
            key = (subscription, *through)
            ledger.remove_rows(NoticeRow, having={"subscription": subscription}, through=key)

    def _polled(self, principal: Principal, subscription: str) -> None:
        row = self.get(principal, subscription)
        if row.transport != POLL:
            raise NotPolled(
                f"the notices of this subscription go out by {row.transport}",
                subject=f"subscription {subscription}",
                next_step="rebind it to the transport `poll` to fetch them",
            )

    def on_news(self, woken: Callable[[str], None]) -> None:
        """Call `woken`, in any thread, with each subscription that may have news.

        That may be before the batch is committed: a reader then waits for the commit, since there is one writer.
        """
        with self._guard:
            self._listeners = (*self._listeners, woken)

    # --- for the writer ---

    def note(self, joined: Joined, ledger: Ledger) -> None:
        """Queue the notices of a batch, in its transaction. Without subscriptions the batch is not even examined."""
        if self._stale:
            self._load(ledger)
        with self._guard:
            matching = self._matching
        if not matching:
            return
        notices, watched = matching.notices(
            joined, find_watched=lambda keys: ledger.rows_by_keys(WatchedRow, by=_WATCHED_KEY, keys=keys)
        )
        if notices:
            ledger.put_rows(notices)
        if watched:
            ledger.put_rows(watched)
        for subscription in {notice.subscription for notice in notices}:
            self._wake(subscription)

    # --- for the deliveries ---

    def waiting(self) -> list[SubscriptionRow]:
        """Subscriptions with an address that may have notices to send."""
        with self._guard:
            return [known.row for known in self._live_ones() if known.waiting and known.row.transport != POLL]

    def next_expiry(self) -> float | None:
        """When the next subscription expires."""
        with self._guard:
            return min((known.row.expires_at for known in self._known.values()), default=None)

    def turn(self, subscription: str, *, limit: int) -> tuple[SubscriptionRow, list[NoticeRow]] | None:
        """The next notices to send for a subscription, or None."""
        with self._transaction() as ledger:
            known = self._known.get(subscription)
            if known is None or known.row.transport == POLL or known.row.expires_at <= self._clock.now():
                return None
            found = ledger.find_rows(NoticeRow, having={"subscription": subscription}, limit=limit)
            if not found:
                known.waiting = False
                return None
            return known.row, found

    def record_turn(self, sent: SubscriptionRow, *, through: Number | None, fault: str, next_at: float) -> None:
        """Record the outcome of a turn: delivered up to a number, perhaps a fault, and when to continue."""
        with self._transaction() as ledger:
            if through is not None:
                key = (sent.subscription, *through)
                ledger.remove_rows(NoticeRow, having={"subscription": sent.subscription}, through=key)
            known = self._known.get(sent.subscription)
            # After a rebind, a failure at the old address says nothing about the new one.
            if known is None or known.row.binding != sent.binding:
                return
            before = 0 if through is not None else known.row.attempts
            row = msgspec.structs.replace(
                known.row, attempts=before + 1 if fault else 0, next_at=next_at, fault=plain(fault)
            )
            if row != known.row:
                self._put(ledger, row)

    def sweep(self) -> None:
        """End expired subscriptions."""
        now = self._clock.now()
        with self._transaction() as ledger:
            for row in [known.row for known in self._known.values() if known.row.expires_at <= now]:
                self._expire(ledger, row)

    # --- private ---

    @contextmanager
    def _transaction(self) -> Iterator[Ledger]:
        """A transaction; if it is rolled back, the next one loads the subscriptions again."""
        written = self._written
        try:
            with self._journal.transaction() as ledger:
                if self._stale:
                    self._load(ledger)
                written = self._written
                yield ledger
        except BaseException:
            self._stale = self._stale or self._written != written
            raise

    def _refresh_known(self) -> None:
        if self._stale:
            with self._transaction():
                pass

    def _load(self, ledger: Ledger) -> None:
        found = ledger.find_rows(SubscriptionRow, having={})
        with self._guard:
            self._known = {row.subscription: _known(row) for row in found}
            self._matching = Matching(known.live for known in self._known.values())
            self._stale = False

    def _put(self, ledger: Ledger, row: SubscriptionRow) -> None:
        self._written += 1
        ledger.put_rows([row])
        with self._guard:
            before = self._known.get(row.subscription)
            self._known[row.subscription] = _known(row)
            # A failed turn does not change what the subscription matches.
            if before is None or (before.row.expires_at, before.row.principal) != (row.expires_at, row.principal):
                self._matching = Matching(known.live for known in self._known.values())

    def _remove(self, ledger: Ledger, row: SubscriptionRow) -> None:
        self._written += 1
        for kind in (NoticeRow, WatchedRow, SubscriptionRow):
            ledger.remove_rows(kind, having={"subscription": row.subscription})
        with self._guard:
            self._known.pop(row.subscription, None)
            self._matching = Matching(known.live for known in self._known.values())
        self._wake(row.subscription)

    def _expire(self, ledger: Ledger, row: SubscriptionRow) -> None:
        queued = len(ledger.find_rows(NoticeRow, having={"subscription": row.subscription}, limit=1000))
        many = "1000 or more" if queued == 1000 else str(queued)
        log.info("subscription %s of %s has expired; undelivered notices: %s", row.subscription, row.owner, many)
        self._remove(ledger, row)

    def _live_ones(self) -> list[_ActiveSubscription]:
        now = self._clock.now()
        return [known for known in self._known.values() if known.row.expires_at > now]

    def _wake(self, subscription: str) -> None:
        with self._guard:
            known = self._known.get(subscription)
            if known is not None:
                known.waiting = True
            woken = self._listeners
        for each in woken:
            each(subscription)

    def _validity(self, asked: float | None) -> float:
        settings = self._settings
        if asked is not None and not asked > 0:
            raise SubscriptionError("`validity_seconds` must be positive", got=str(asked))
        return min(asked if asked is not None else settings.validity_seconds, settings.validity_seconds_max)

    def _check_binding(self, transport: str, address: str, secret: str) -> None:
        if transport != POLL and transport not in self.notifiers:
            known: Sequence[str] = (POLL, *self.notifiers)
            raise SubscriptionError(
                f"there is no transport {plain(transport, length_max=40)!r} here",
                expected=" or ".join(known),
                next_step="mail needs a mail server: the setting notifications.smtp_host" if transport == MAIL else "",
            )
        if transport == POLL and address:
            raise SubscriptionError("a polled subscription has no address")
        if secret and not (SECRET_MIN <= len(secret) <= SECRET_MAX and secret.isprintable()):
            raise SubscriptionError(
                "this secret cannot be used", expected=f"{SECRET_MIN} to {SECRET_MAX} printable characters"
            )
        if transport != POLL:
            self.notifiers[transport].check_address(address)


def _stored(principal: Principal) -> str:
    scopes = sorted(principal.scopes & {ANY_OWNER})
    return json.dumps({"groups": sorted(principal.groups), "scopes": scopes})


def _known(row: SubscriptionRow) -> _ActiveSubscription:
    stored = json.loads(row.principal)
    principal = Principal(user=row.owner, groups=frozenset(stored["groups"]), scopes=frozenset(stored["scopes"]))
    what = wanted(
        target=row.target, query=row.query, states=json.loads(row.states), attributes=json.loads(row.attributes)
    )

    def may_read(job: JobRow) -> bool:
        return may(principal, "read", job)

    live = ActiveSubscription(subscription=row.subscription, wanted=what, expires_at=row.expires_at, may_read=may_read)
    return _ActiveSubscription(row=row, live=live)
