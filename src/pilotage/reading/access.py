"""May they? Every request has a principal, and this one module says what a principal may do.

Scopes say what kind of thing a token is good for; the owner and the access list of a job say for which jobs.
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
    WRITE: "log events about one's own jobs, and those that one may modify",
    DECIDE: "log events as the source `service`, which decides: for a scheduler",
    ANY_OWNER: "act for everybody: register, read and change jobs of any owner",
    SUBMIT: "submit jobs to be run",
    OPERATE: "kill, hold, release, restart, clear, purge and otherwise steer jobs that one may cancel or modify",
    SUBSCRIBE: "subscribe to what changes, and change or end subscriptions of one's own",
    SITES: "hibernate, wake and probe sites: for who runs the service",
    EXCHANGE: "fetch work and report on it: for agents",
    SITE_AGENT: "submit and withdraw pilots at a site: for the agent of that site",
    OWN_PACKAGE: "tag one package, and note things about it: for what runs in it",
}
"""Every scope a token may have, and what it allows."""

GROUP_PREFIX = "group:"
"""What stands before the name of a group in an access list, so that no user can be called like a group."""

_rules = msgspec.json.Decoder(tuple[payloads.AccessRule, ...])


class Unauthenticated(PilotageError):
    """No token, or none that is known here: send `Authorization: Bearer TOKEN`."""


class Forbidden(PilotageError):
    """Known, but not allowed: the message names the scope or the right that is missing."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: a user, the groups they are in, and what their token is good for."""

    user: str
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    site: str = ""  # speaks for this site alone: an agent elsewhere
    pilot: str = ""  # … and there for this pilot alone
    package: AttemptRef | None = None  # speaks of this package alone: what an attempt runs
    issued_at: float = 0.0
    expires_at: float = 0.0  # 0: when its key does

    @property
    def is_bound(self) -> bool:
        """Whether the token speaks for a site or a package, and so has no rights of its user."""
        return bool(self.site) or self.package is not None


class KnowsTokens(Protocol):
    """Who knows tokens that are not kept anywhere."""

    def principal(self, token: str) -> Principal | None:
        """Who shows a token; None where it is none of these."""
        ...

    def holder(self, token: str) -> Principal | None:
        """To whom a token was given, whether it has ended or not; None where it is none of these."""
        ...

    def renewed(self, principal: Principal) -> str:
        """Another token where the one of this principal ends soon; else nothing."""
        ...

    def introduced(self, principal: Principal, pilot: str) -> str:
        """A token that is good for one pilot of a principal's site."""
        ...


def local_principal(user: str) -> Principal:
    """The local user of an embedded book, who may do everything."""
    return Principal(user=user, scopes=frozenset(SCOPES))


def digest_of(token: str) -> str:
    """What is kept of a token: whoever reads it cannot use it."""
    return hashlib.sha256(token.encode()).hexdigest()


class Access:
    """Knows tokens by their digests, and answers what their principals may do."""

    def __init__(self, principals: Mapping[str, Principal], *, tokens: KnowsTokens | None = None) -> None:
        """Take principals by the digests of their tokens, as `digest_of` makes them, and who knows any others."""
        self._principals = tuple(principals.items())
        self._tokens = tokens

    def renew(self, principals: Mapping[str, Principal]) -> None:
        """These are the principals from now on, by the digests of their tokens; those of other kinds stay."""
        self._principals = tuple(principals.items())

    def principal(self, authorization: str | None) -> Principal:
        """Who sends this `Authorization` header; raises `Unauthenticated`."""
        scheme, _, token = (authorization or "").strip().partition(" ")
        found = None
        if scheme.lower() == "bearer":
            digest = digest_of(token.strip())
            # Every digest is compared, each in constant time: how long it takes says nothing.
            for known, principal in self._principals:
                if hmac.compare_digest(known, digest):
                    found = principal
            if found is None and self._tokens is not None and token:
                found = self._tokens.principal(token.strip())
        if found is None:
            raise Unauthenticated(
                "no token, or one that is not known here",
                expected="the header `Authorization: Bearer TOKEN`",
                next_step="the local token is in the file `token` of the book's folder; clients read PILOTAGE_TOKEN_FILE",
            )
        return found

    def holder(self, token: str) -> Principal | None:
        """To whom a token of ours was given, whether it has ended or not: it proves nothing alone."""
        return self._tokens.holder(token) if self._tokens is not None and token else None

    def renewed(self, principal: Principal) -> str:
        """Another token for a principal whose own ends soon; nothing where it lasts."""
        return self._tokens.renewed(principal) if self._tokens is not None and principal.expires_at else ""

    def introduced(self, principal: Principal, pilot: str) -> str:
        """A token for a pilot that is new here, where it shows that of its site; it is good for that pilot alone."""
        return self._tokens.introduced(principal, pilot) if self._tokens is not None else ""


def require_scope(principal: Principal, scope: str) -> None:
    """Refuse who has not the scope."""
    if scope not in principal.scopes:
        raise Forbidden(
            f"this token is not good for it: to {SCOPES[scope].partition(':')[0]}",
            subject=principal.user,
            expected=f"the scope {scope}",
            got=", ".join(sorted(principal.scopes)) or "no scope",
            next_step="ask who runs this service for another token",
        )


def require_scopes(principal: Principal, scopes: Iterable[str]) -> None:
    """Refuse who has not every one of the scopes."""
    for scope in scopes:
        require_scope(principal, scope)


def may(principal: Principal, right: Right, job: JobRow) -> bool:
    """Whether a principal has a right on a job; who may do anything to it may read it."""
    if principal.is_bound:
        return False
    if ANY_OWNER in principal.scopes or job.owner == principal.user:
        return True
    if job.access in ("", "[]"):
        return False
    for rule in _rules.decode(job.access):
        kind, _, name = rule.principal.partition(GROUP_PREFIX)
        named = name in principal.groups if not kind and name else rule.principal == principal.user
        if named and (right in rule.rights or (right == "read" and rule.rights)):
            return True
    return False


def require(principal: Principal, right: Right, job: JobRow) -> None:
    """Refuse who has not the right on the job."""
    if not may(principal, right, job):
        raise Forbidden(
            f"{principal.user} may not {right} this job",
            subject=f"job {job.job}",
            next_step="ask its owner for access",
        )


def may_log_anything(principal: Principal) -> bool:
    """Whether no event needs to be looked at before it is taken."""
    return DECIDE in principal.scopes and ANY_OWNER in principal.scopes


def allowed_events(
    principal: Principal, checked: Sequence[Checked], *, find_job: Callable[[str], JobRow | None]
) -> tuple[Sequence[Checked], list[Refusal]]:
    """The events that a principal may log, and why not the others.

    Events of a job that is not registered yet are taken from everybody who may log at all: whose it is, is not known.
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
        why = "" if decides or event.source != "service" else f"only a token with {DECIDE} speaks as the service"
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
    """The events that a running package may log: notes and tags of itself."""
    allowed, refused = [], []
    for one in checked:
        event = one.event
        why = ""
        if (event.job, event.package) != (own.job, own.package) or event.attempt not in (None, own.attempt):
            why = f"this token is for attempt {own.attempt} of {own.job}/{own.package}, and for nothing else"
        elif event.source != "application" or not isinstance(one.data, payloads.Tagged | payloads.Noted):
            why = "a package tags itself and notes things, as the source `application`: no more"
        if why:
            refused.append(Refusal(index=one.index, code="forbidden", message=why))
        else:
            allowed.append(one)
    return allowed, refused


_ANYBODYS = payloads.Tagged | payloads.Noted | payloads.OwnerSet | payloads.AccessSet
"""What may be said from outside of a job that is run here."""


def left_to_engine(
    checked: Sequence[Checked], *, find_job: Callable[[str], JobRow | None]
) -> tuple[Sequence[Checked], list[Refusal]]:
    """The events that may come from outside while an engine decides here, and why not the others.

    What the engine and its agents say goes other ways. A job that another scheduler runs may be told of here all the
    same, from its registration on: it has no definition that this engine could run.
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
        how = "decides here by itself" if event.source == "service" else "hears its agents at /agent/exchange"
        return f"this service {how}; a book for another scheduler is served with --book-only"
    if isinstance(data, _ANYBODYS):
        return ""
    if isinstance(data, payloads.JobRegistered) and event.job is not None:
        if data.definition is not None:
            return "this service runs what it has the definition of: submit the job"
        known = find_job(event.job)
        foreign[event.job] = known is None or known.definition is None
    if event.job is None:
        return "only this service and its agents say this"
    if event.job not in foreign:
        row = find_job(event.job)
        foreign[event.job] = row is not None and row.definition is None
    return "" if foreign[event.job] else f"only this service and its agents say this of job {event.job}"


def _why_not(principal: Principal, data: payloads.Payload, job: JobRow | None) -> str:
    """Why a principal may not say this of a job; empty where they may."""
    if isinstance(data, payloads.JobRegistered) and data.owner != principal.user:
        return f"the owner must be {principal.user}: only a token with {ANY_OWNER} registers jobs for others"
    if job is None:
        # Such an event is parked, and counts when the job is registered, which may be by somebody else.
        kinds = payloads.OwnerSet | payloads.AccessSet
        return "the job is not registered: only its owner may say this" if isinstance(data, kinds) else ""
    if isinstance(data, payloads.OwnerSet | payloads.AccessSet | payloads.JobRegistered):
        # A right that was granted does not carry the right to grant.
        return "" if job.owner == principal.user else f"only its owner may say this of job {job.job}"
    right: Right = "cancel" if isinstance(data, payloads.CancelAccepted) else "modify"
    if may(principal, right, job):
        return ""
    return f"{principal.user} may not {right} job {job.job}; ask its owner for access"
