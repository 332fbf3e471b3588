"""Issues and recognizes the tokens of pilots, site agents and running packages.

A pilot's token is a signed JWT with the claims of the WLCG profile, its site and its name; it lasts for days, and the
answers to its exchanges renew it. The pilots of a site start with a token that names no pilot: it only allows a new
pilot to introduce itself and get a token of its own. A package's token is a keyed digest of its attempt: attempts may
last a millisecond, so it must cost microseconds. It does not expire by itself, but ends with its attempt, as recorded
in the book (`why_ended`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Protocol

from pilotage.book.rows.rows import AttemptFacts
from pilotage.model.events.events import COUNTER_MAX, DOTTED, JOB_ID
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.reading.access import EXCHANGE, OWN_PACKAGE, SCOPES, SITE_AGENT, Principal, Unauthenticated

ISSUER = AUDIENCE = "pilotage"
PROFILE = "1.0"  # from the WLCG common JWT profiles
LEEWAY_SECONDS = 60.0
"""How far apart the clocks of two computers may be."""
PILOT_SECONDS = 7 * 86_400.0
RENEW_LEFT = 1.0 / 3.0
"""Renew a token when this fraction of its life is left."""
MARGIN_SECONDS = 900.0
"""How long a package's token stays valid after its attempt ended: its last events may still be in transit."""
REMEMBERED_MAX = 4096

_PACKAGE = "package1"
_DIGEST_BYTES = 24
_PERSON = b"pilotage package"  # so that digests of this key are used for nothing else


class Keys(Protocol):
    """Signs tokens; the keys never leave it."""

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A JWT with these claims."""
        ...

    def verify(self, token: str, *, issuer: str, audience: str) -> Mapping[str, Any]:
        """The claims of a JWT signed with these keys, expired or not; raises `ValueError` for any other."""
        ...

    def package_key(self) -> bytes:
        """The key for the digests in packages' tokens."""
        ...


class Tokens:
    """Issues tokens and recognizes them. Any thread may use it."""

    def __init__(
        self, keys: Keys, *, user: str, clock: Callable[[], float], pilot_seconds: float = PILOT_SECONDS
    ) -> None:
        """Take the signer, the owner of the service, and how long a pilot's token lasts; reads nothing yet."""
        self._keys = keys
        self._user = user
        self._clock = clock
        self._pilot_seconds = pilot_seconds
        self._package_digest: blake2b | None = None  # with the key, before the rest of the message
        self._known: dict[bytes, Principal] = {}  # verified tokens, by digest

    def for_pilot(self, site: str, *, user: str = "", seconds: float = 0.0) -> str:
        """A token for the pilots of a site, with which each gets one of its own."""
        return self._signed(site, user=user, seconds=seconds, scopes=(EXCHANGE,))

    def for_site_agent(self, site: str, *, user: str = "", seconds: float = 0.0) -> str:
        """A token for the agent of a site, which submits pilots there."""
        return self._signed(site, user=user, seconds=seconds, scopes=(EXCHANGE, SITE_AGENT))

    def for_package(self, ref: AttemptRef) -> str:
        """A token for the programs of an attempt."""
        claims = f"{_PACKAGE}~{ref.job}~{ref.package}~{ref.attempt}"
        return f"{claims}~{self._digest(claims)}"

    def renewed(self, principal: Principal) -> str:
        """A new token for a principal whose own expires soon; else empty."""
        if not principal.expires_at:
            return ""
        life_seconds = principal.expires_at - principal.issued_at
        if principal.expires_at - self._clock() > life_seconds * RENEW_LEFT:
            return ""
        return self._signed(
            principal.site,
            pilot=principal.pilot,
            user=principal.user,
            seconds=life_seconds,
            scopes=tuple(sorted(principal.scopes)),
        )

    def pilot_token(self, principal: Principal, pilot: str) -> str:
        """A token for one pilot only, which lasts as long as that of its site."""
        life_seconds = principal.expires_at - principal.issued_at
        return self._signed(principal.site, pilot=pilot, user=principal.user, seconds=life_seconds, scopes=(EXCHANGE,))

    def principal(self, token: str) -> Principal | None:
        """The principal of a token; None for other kinds of tokens. Raises `Unauthenticated` for an expired one."""
        if token.startswith(f"{_PACKAGE}~"):
            return self._package(token)
        if token.count(".") != 2:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._read(token)
            if known is None:
                return None
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[digest] = known
        now = self._clock()
        if now > known.expires_at + LEEWAY_SECONDS:
            raise Unauthenticated("this token has expired", subject=_of(known), next_step="ask for another one")
        if now < known.issued_at - LEEWAY_SECONDS:
            raise Unauthenticated("this token is not valid yet: one of the clocks is wrong", subject=_of(known))
        return known

    def holder(self, token: str) -> Principal | None:
        """The principal a pilot's or site's token was issued to, expired or not; None for other kinds of tokens."""
        return self._read(token) if token.count(".") == 2 else None

    def _signed(self, site: str, *, user: str, seconds: float, scopes: tuple[str, ...], pilot: str = "") -> str:
        now = int(self._clock())
        return self._keys.sign(
            {
                "iss": ISSUER,
                "aud": AUDIENCE,
                "sub": user or self._user,
                "site": site,
                **({"pilot": pilot} if pilot else {}),
                "scope": " ".join(scopes),
                "iat": now,
                "nbf": now,
                "exp": now + int(seconds or self._pilot_seconds),
                "jti": secrets.token_hex(12),
                "wlcg.ver": PROFILE,
            }
        )

    def _read(self, token: str) -> Principal | None:
        try:
            claims = self._keys.verify(token, issuer=ISSUER, audience=AUDIENCE)
            scopes = frozenset(str(claims["scope"]).split()) & SCOPES.keys()
            return Principal(
                user=str(claims["sub"]),
                scopes=scopes & {EXCHANGE, SITE_AGENT},
                site=_named(claims["site"]),
                pilot=_named(claims["pilot"]) if "pilot" in claims else "",
                issued_at=float(claims["iat"]),
                expires_at=float(claims["exp"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    def _package(self, token: str) -> Principal | None:
        words = token.split("~")
        if len(words) != 5 or not JOB_ID.fullmatch(words[1]) or not DOTTED.fullmatch(words[2]):
            return None
        number = words[3]
        if not number.isascii() or not number.isdigit() or len(number) > 16 or not 1 <= int(number) <= COUNTER_MAX:
            return None
        ref = AttemptRef(words[1], words[2], int(number))
        if not hmac.compare_digest(self.for_package(ref).encode(), token.encode()):
            return None
        return Principal(user=self._user, scopes=frozenset({OWN_PACKAGE}), package=ref)

    def _digest(self, claims: str) -> str:
        begun = self._package_digest
        if begun is None:
            # Keyed BLAKE2b is made for this, and takes a quarter of the time of an HMAC with SHA-256.
            key = self._keys.package_key()
            begun = self._package_digest = blake2b(key=key, digest_size=_DIGEST_BYTES, person=_PERSON)
        digest = begun.copy()
        digest.update(claims.encode())
        return digest.hexdigest()


def why_ended(attempt: AttemptFacts | None, now: float) -> str:
    """Why the token of an attempt is no longer valid; empty while it is."""
    if attempt is None:
        return "there is no such attempt"
    ended_at = max(attempt.finished_at or 0.0, attempt.granted_at or 0.0, attempt.lost_at or 0.0)
    return "its attempt is over" if ended_at and now > ended_at + MARGIN_SECONDS else ""


def _named(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError("a token of no site, or of a pilot without a name")
    return name


def _of(principal: Principal) -> str:
    return f"the token of {principal.user} at {principal.site}{principal.pilot and f' for pilot {principal.pilot}'}"
