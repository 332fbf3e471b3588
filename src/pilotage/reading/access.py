"""Authorization: every request has a principal, and this module decides what a principal may do.

Scopes say what kind of request a token allows; the owner and the access list of a job say for which jobs.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from pilotage.book.codec import Checked, Refusal
from pilotage.book.rows.rows import JobRow
from pilotage.model.errors import PilotageError
from pilotage.model.events import payloads
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.records import Deletion, JobRecord

Right = Literal["read", "modify", "cancel"]

READ = "book.read"
WRITE = "book.write"
DECIDE = "book.decide"
ANY_OWNER = "book.any_owner"
SUBMIT = "job.submit"
OPERATE = "job.operate"
SUBSCRIBE = "book.subscribe"
SITES = "site.operate"
EXCHANGE = "agent.exchange"
SITE_AGENT = "agent.site"
OWN_PACKAGE = "package.log"

SCOPES: Mapping[str, str] = {
    READ: "read jobs, packages, events and statistics",
    WRITE: "log events of your own jobs, and of those you may modify",
    DECIDE: "log decisions, as the source `service`: for a scheduler",
    ANY_OWNER: "act for everyone: register, read and change jobs of any owner",
    SUBMIT: "submit jobs to be run",
    OPERATE: "kill, hold, release, restart, clear, purge and otherwise steer jobs you may cancel or modify",
    SUBSCRIBE: "subscribe to changes, and change or end your own subscriptions",
    SITES: "hibernate, wake and probe sites: for operators of the service",
    EXCHANGE: "fetch work and report on it: for agents",
    SITE_AGENT: "submit and cancel pilots at a site: for the agent of that site",
    OWN_PACKAGE: "tag one package and log notes about it: for programs running in it",
}
"""Every scope a token may have, and what it allows."""

GROUP_PREFIX = "group:"
"""The prefix of a group's name in an access list, so that no user can have the name of a group."""

_rules = msgspec.json.Decoder(tuple[payloads.AccessRule, ...])


class Unauthenticated(PilotageError):
    """No token, or an unknown one: send `Authorization: Bearer TOKEN`."""


class Forbidden(PilotageError):
    """The token is known but does not allow this: the message names the missing scope or right."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request: a user, their groups, and the scopes of their token."""

    user: str
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    site: str = ""  # the token of an agent, valid for this site only
    pilot: str = ""  # … and there for this pilot only
    package: AttemptRef | None = None  # the token of a running attempt, valid for its package only
    issued_at: float = 0.0
    expires_at: float = 0.0  # 0: when its key does

    @property
    def is_bound(self) -> bool:
        """Whether the token belongs to a site or a package, and so has no rights of its user."""
        return bool(self.site) or self.package is not None


class TokenVerifier(Protocol):
    """Recognizes signed tokens, which are stored nowhere."""

    def principal(self, token: str) -> Principal | None:
        """The principal of a token; None for other kinds of tokens."""
        ...

    def holder(self, token: str) -> Principal | None:
        """The principal a token was issued to, expired or not; None for other kinds of tokens."""
        ...

    def renewed(self, principal: Principal) -> str:
        """A new token if the principal's own expires soon; else empty."""
        ...

    def pilot_token(self, principal: Principal, pilot: str) -> str:
        """A token for one pilot of the principal's site."""
        ...


def local_principal(user: str) -> Principal:
    """The local user of an embedded book, with all rights."""
    return Principal(user=user, scopes=frozenset(SCOPES))


def digest_of(token: str) -> str:
    """The stored form of a token, from which the token cannot be recovered."""
    return hashlib.sha256(token.encode()).hexdigest()


class Access:
    """Finds the principal of a token by its digest, and checks what principals may do."""

    def __init__(self, principals: Mapping[str, Principal], *, tokens: TokenVerifier | None = None) -> None:
        """Take principals by the digests of their tokens (`digest_of`), and what recognizes signed tokens."""
        self._principals = tuple(principals.items())
        self._tokens = tokens

    def renew(self, principals: Mapping[str, Principal]) -> None:
        """Replace the principals, by the digests of their tokens; signed tokens stay valid."""
        self._principals = tuple(principals.items())

    def principal(self, authorization: str | None) -> Principal:
        """The principal of an `Authorization` header; raises `Unauthenticated`."""
        scheme, _, token = (authorization or "").strip().partition(" ")
        found = None
        if scheme.lower() == "bearer":
            digest = digest_of(token.strip())
            # Compare every digest, each in constant time, so that the duration reveals nothing.
            for known, principal in self._principals:
                if hmac.compare_digest(known, digest):
                    found = principal
            if found is None and self._tokens is not None and token:
                found = self._tokens.principal(token.strip())
        if found is None:
            raise Unauthenticated(
                "no token, or an unknown one",
                expected="the header `Authorization: Bearer TOKEN`",
                next_step="the local token is in the file `token` of the book's folder; clients read PILOTAGE_TOKEN_FILE",
            )
        return found

    def holder(self, token: str) -> Principal | None:
        """The principal a signed token was issued to, expired or not; this alone proves nothing."""
        return self._tokens.holder(token) if self._tokens is not None and token else None

    def renewed(self, principal: Principal) -> str:
        """A new token for a principal whose own expires soon; else empty."""
        return self._tokens.renewed(principal) if self._tokens is not None and principal.expires_at else ""

    def pilot_token(self, principal: Principal, pilot: str) -> str:
        """A token for a new pilot that shows the token of its site; it is valid for that pilot only."""
        return self._tokens.pilot_token(principal, pilot) if self._tokens is not None else ""


def require_scope(principal: Principal, scope: str) -> None:
    """Raise `Forbidden` if the principal lacks the scope."""
    if scope not in principal.scopes:
        raise Forbidden(
            f"this token may not {SCOPES[scope].partition(':')[0]}",
            subject=principal.user,
            expected=f"the scope {scope}",
            got=", ".join(sorted(principal.scopes)) or "no scope",
            next_step="ask the operator of this service for another token",
        )


def require_scopes(principal: Principal, scopes: Iterable[str]) -> None:
    """Raise `Forbidden` if the principal lacks one of the scopes."""
    for scope in scopes:
        require_scope(principal, scope)


def may(principal: Principal, right: Right, job: JobRow) -> bool:
    """Whether a principal has a right on a job; any right includes reading it."""
    if principal.is_bound:
        return False
    if ANY_OWNER in principal.scopes or job.owner == principal.user:
        return True
    return job.access not in ("", "[]") and _is_granted(principal, right, _rules.decode(job.access))


def owner_may_read(owner: str, job: JobRow) -> bool:
    """Whether the jobs of an owner may read the files of a job; the groups of an owner are not known."""
    return may(Principal(user=owner), "read", job)


def may_use_record(principal: Principal, right: Right, record: JobRecord | Deletion) -> bool:
    """Whether a principal has a right on the record of a job, or had it when that was deleted: by the access list that it carries."""
    if principal.is_bound:
        return False
    if ANY_OWNER in principal.scopes or record.owner == principal.user:
        return True
    return _is_granted(principal, right, record.access)


def _is_granted(principal: Principal, right: Right, rules: Iterable[payloads.AccessRule]) -> bool:
    for rule in rules:
        kind, _, name = rule.principal.partition(GROUP_PREFIX)
        named = name in principal.groups if not kind and name else rule.principal == principal.user
        if named and (right in rule.rights or (right == "read" and rule.rights)):
            return True
    return False


def require(principal: Principal, right: Right, job: JobRow) -> None:
    """Raise `Forbidden` if the principal lacks the right on the job."""
    if not may(principal, right, job):
        raise Forbidden(
            f"{principal.user} may not {right} this job",
            subject=f"job {job.job}",
            next_step="ask its owner for access",
        )


def may_log_anything(principal: Principal) -> bool:
    """Whether a principal may log every event, so that none needs a check."""
    return DECIDE in principal.scopes and ANY_OWNER in principal.scopes


def allowed_events(
    principal: Principal, checked: Sequence[Checked], *, find_job: Callable[[str], JobRow | None]
) -> tuple[Sequence[Checked], list[Refusal]]:
    """Split events into those that the principal may log, and refusals of the others.

    Events of a job that is not registered yet are taken from everyone who may log, since its owner is unknown.
    """
    if principal.package is not None:
        return _of_its_package(principal.package, checked)
    if may_log_anything(principal):
        return checked, []
    decides = DECIDE in principal.scopes
    jobs: dict[str, JobRow | None] = {}
    allowed, refused = [], []
    for one in checked:
        event = one.event
        why = "" if decides or event.source != "service" else f"only a token with {DECIDE} may log as the service"
        if not why and event.job is not None and ANY_OWNER not in principal.scopes:
            if event.job not in jobs:
                jobs[event.job] = find_job(event.job)
            why = _why_not(principal, one.data, jobs[event.job])
        if why:
            refused.append(Refusal(index=one.index, code="forbidden", message=why))
        else:
            allowed.append(one)
    return allowed, refused


def _of_its_package(own: AttemptRef, checked: Sequence[Checked]) -> tuple[Sequence[Checked], list[Refusal]]:
    """The events that a running package may log: its own notes and tags."""
    allowed, refused = [], []
    for one in checked:
        event = one.event
        why = ""
        if (event.job, event.package) != (own.job, own.package) or event.attempt not in (None, own.attempt):
            why = f"this token is valid for attempt {own.attempt} of {own.job}/{own.package} only"
        elif event.source != "application" or not isinstance(one.data, payloads.Tagged | payloads.Noted):
            why = "a package may only log its own tags and notes, as the source `application`"
        if why:
            refused.append(Refusal(index=one.index, code="forbidden", message=why))
        else:
            allowed.append(one)
    return allowed, refused


_ANYBODYS = payloads.Tagged | payloads.Noted | payloads.OwnerSet | payloads.AccessSet
"""The events that clients may log about a job that runs here."""


def left_to_engine(
    checked: Sequence[Checked], *, find_job: Callable[[str], JobRow | None]
) -> tuple[Sequence[Checked], list[Refusal]]:
    """Split events into those that clients may log next to a running engine, and refusals of the others.

    The engine and its agents log theirs in other ways. Clients may still log the events of a job that another scheduler
    runs, from its registration on: such a job has no definition that this engine could run.
    """
    foreign: dict[str, bool] = {}
    allowed, refused = [], []
    for one in checked:
        why = _left_to_engine(one, foreign, find_job)
        if why:
            refused.append(Refusal(index=one.index, code="forbidden", message=why))
        else:
            allowed.append(one)
    return allowed, refused


def _left_to_engine(one: Checked, foreign: dict[str, bool], find_job: Callable[[str], JobRow | None]) -> str:
    event, data = one.event, one.data
    if event.source in ("service", "agent"):
        how = "makes its own decisions" if event.source == "service" else "hears its agents at /agent/exchange"
        return f"this service {how}; a book for another scheduler is served with --book-only"
    if isinstance(data, _ANYBODYS):
        return ""
    if isinstance(data, payloads.JobRegistered) and event.job is not None:
        if data.definition is not None:
            return "this service runs jobs that have a definition: submit the job"
        known = find_job(event.job)
        foreign[event.job] = known is None or known.definition is None
    if event.job is None:
        return "only this service and its agents may log this event"
    if event.job not in foreign:
        row = find_job(event.job)
        foreign[event.job] = row is not None and row.definition is None
    return "" if foreign[event.job] else f"only this service and its agents may log this event of job {event.job}"


def _why_not(principal: Principal, data: payloads.Payload, job: JobRow | None) -> str:
    """Why a principal may not log this event of a job; empty if they may."""
    if isinstance(data, payloads.JobRegistered) and data.owner != principal.user:
        return f"the owner must be {principal.user}: only a token with {ANY_OWNER} registers jobs for others"
    if job is None:
        # Such an event is parked and takes effect when the job is registered, perhaps by another user.
        kinds = payloads.OwnerSet | payloads.AccessSet
        return "the job is not registered: only its owner may log this event" if isinstance(data, kinds) else ""
    if isinstance(data, payloads.OwnerSet | payloads.AccessSet | payloads.JobRegistered):
        # A granted right does not include the right to grant.
        return "" if job.owner == principal.user else f"only its owner may log this event of job {job.job}"
    right: Right = "cancel" if isinstance(data, payloads.CancelAccepted) else "modify"
    if may(principal, right, job):
        return ""
    return f"{principal.user} may not {right} job {job.job}; ask its owner for access"
