"""Tokens that a service gives out: what they say, how long they are good, and who else's are not taken."""

from __future__ import annotations

import base64
import json
import stat
import threading
from pathlib import Path
from typing import Any

import jwt
import pytest

from pilotage.adapters.settings.tokens import KeyFault, StoredKeys
from pilotage.agent.link.connect import Credentials, ends_at
from pilotage.book.rows.rows import AttemptFacts
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.reading.access import (
    EXCHANGE,
    OWN_PACKAGE,
    SITE_AGENT,
    Access,
    Principal,
    Unauthenticated,
    digest_of,
    local_principal,
)
from pilotage.service.tokens import LEEWAY_SECONDS, MARGIN_SECONDS, Tokens, why_ended

NOW = 1_800_000_000.0
LIFE_SECONDS = 900.0
REF = AttemptRef("reco-001", "1.2.3", 4)


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> Tokens:
    return Tokens(StoredKeys(tmp_path), user="ann", clock=clock, pilot_seconds=LIFE_SECONDS)


def known(tokens: Tokens, token: str) -> Principal:
    found = tokens.principal(token)
    assert found is not None
    return found


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


# --- pilots and site agents ---


def test_a_pilots_token_names_user_site_and_lifetime(tokens: Tokens) -> None:
    token = tokens.for_pilot("lyon")
    claims = claims_of(token)
    assert (claims["sub"], claims["site"], claims["scope"]) == ("ann", "lyon", EXCHANGE)
    assert (claims["iat"], claims["exp"]) == (NOW, NOW + LIFE_SECONDS)
    assert (claims["wlcg.ver"], len(claims["jti"])) == ("1.0", 24)
    assert jwt.get_unverified_header(token)["alg"] == "EdDSA"
    principal = known(tokens, token)
    assert (principal.user, principal.site, principal.scopes) == ("ann", "lyon", frozenset({EXCHANGE}))
    assert claims_of(tokens.for_pilot("lyon"))["jti"] != claims["jti"]


def test_the_token_of_a_site_agent_says_more(tokens: Tokens) -> None:
    principal = known(tokens, tokens.for_site_agent("lyon", user="bob"))
    assert (principal.user, principal.scopes) == ("bob", frozenset({EXCHANGE, SITE_AGENT}))


def test_a_token_ends_and_a_clock_may_be_a_minute_wrong(tokens: Tokens, clock: Clock) -> None:
    token = tokens.for_pilot("lyon")
    for ahead in (-LEEWAY_SECONDS, 0.0, LIFE_SECONDS, LIFE_SECONDS + LEEWAY_SECONDS):
        clock.now = NOW + ahead
        assert known(tokens, token).site == "lyon"
    clock.now = NOW + LIFE_SECONDS + LEEWAY_SECONDS + 1.0
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.principal(token)
    clock.now = NOW - LEEWAY_SECONDS - 1.0
    with pytest.raises(Unauthenticated, match="clock"):
        tokens.principal(token)


def test_a_token_is_renewed_in_the_last_third_of_its_life_with_the_same_rights(tokens: Tokens, clock: Clock) -> None:
    principal = known(tokens, tokens.for_site_agent("lyon", user="bob"))
    clock.now = NOW + LIFE_SECONDS * 2 / 3 - 1.0
    assert tokens.renewed(principal) == ""
    clock.now += 1.0
    another = known(tokens, tokens.renewed(principal))
    assert (another.user, another.site, another.scopes) == ("bob", "lyon", principal.scopes)
    assert another.expires_at == clock.now + LIFE_SECONDS
    assert tokens.renewed(local_principal("ann")) == ""


def test_who_has_not_the_key_signs_nothing_that_is_taken(tokens: Tokens, tmp_path: Path, clock: Clock) -> None:
    token = tokens.for_pilot("lyon")
    other = Tokens(StoredKeys(tmp_path / "other"), user="ann", clock=clock)
    assert tokens.principal(other.for_pilot("lyon")) is None
    assert other.principal(token) is None
    head, body, signature = token.split(".")
    forged = dict(claims_of(token), site="paris")
    text = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    hmac = jwt.encode(forged, "k" * 32, algorithm="HS256")
    for wrong in (f"{head}.{text}.{signature}", f"{none}.{text}.", hmac, f"{head}.{body}.", "a.b.c", ".."):
        assert tokens.principal(wrong) is None


@pytest.mark.parametrize("gone", ["site", "exp", "sub", "scope", "aud", "iss"])
def test_a_claim_that_is_missing_makes_it_no_token(tokens: Tokens, tmp_path: Path, gone: str) -> None:
    claims = claims_of(tokens.for_pilot("lyon"))
    del claims[gone]
    assert tokens.principal(StoredKeys(tmp_path).sign(claims)) is None


def test_no_claim_gives_more_than_agents_have(tokens: Tokens, tmp_path: Path) -> None:
    claims = dict(claims_of(tokens.for_pilot("lyon")), scope="book.read book.any_owner agent.exchange")
    assert known(tokens, StoredKeys(tmp_path).sign(claims)).scopes == {EXCHANGE}


# --- packages ---


def test_a_packages_token_names_its_attempt_and_is_short(tokens: Tokens) -> None:
    token = tokens.for_package(REF)
    principal = known(tokens, token)
    assert (principal.package, principal.scopes, principal.site) == (REF, frozenset({OWN_PACKAGE}), "")
    assert len(token) < 100
    assert token != tokens.for_package(AttemptRef(REF.job, REF.package, 5))


def test_no_package_makes_a_token_of_another_out_of_its_own(tokens: Tokens) -> None:
    token = tokens.for_package(REF)
    for wrong in (
        token.replace("~1.2.3~", "~1.2.4~"),
        token.replace("~4~", "~5~"),
        token.replace("~4~", "~04~"),
        token.replace("reco-001", "reco-002"),
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        token.rpartition("~")[0] + "~",
        token + "~",
        "package1~~~~",
        "package1~reco-001~1.2.3~99999999999999999999~" + token.rpartition("~")[2],
    ):
        assert tokens.principal(wrong) is None


def test_it_ends_with_its_attempt_and_some_time_for_what_is_on_its_way() -> None:
    assert why_ended(None, NOW)
    assert not why_ended(AttemptFacts(), NOW)
    for facts in (
        AttemptFacts(finished_at=NOW),
        AttemptFacts(lost_at=NOW),
        AttemptFacts(finished_at=1.0, granted_at=NOW),
    ):
        assert not why_ended(facts, NOW + MARGIN_SECONDS)
        assert why_ended(facts, NOW + MARGIN_SECONDS + 1.0)


# --- who is let in ---


def test_kept_tokens_and_signed_ones_are_both_known(tokens: Tokens) -> None:
    access = Access({digest_of("kept-token"): local_principal("ann")}, tokens=tokens)
    assert access.principal("Bearer kept-token").user == "ann"
    pilot = access.principal(f"Bearer {tokens.for_pilot('lyon')}")
    assert (pilot.site, pilot.is_bound, access.renewed(pilot)) == ("lyon", True, "")
    for wrong in (None, "", "Bearer ", "Bearer x", f"Basic {tokens.for_pilot('lyon')}"):
        with pytest.raises(Unauthenticated):
            access.principal(wrong)


# --- keys ---


def test_keys_are_made_once_for_their_owner_alone_whoever_comes_first(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(StoredKeys(tmp_path).package_key())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(found)), len(found[0])) == (8, 1, 32)
    StoredKeys(tmp_path).sign({"sub": "x"})
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "keys").iterdir()}
    assert modes == {"packages.key": 0o600, "tokens.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_a_key_that_others_could_have_read_is_refused(tmp_path: Path) -> None:
    StoredKeys(tmp_path).package_key()
    (tmp_path / "keys/packages.key").chmod(0o640)
    with pytest.raises(KeyFault, match=r"mode 640.*\n.*rm "):
        StoredKeys(tmp_path).package_key()


def test_a_file_that_is_no_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    file = tmp_path / "keys/tokens.pem"
    file.touch(0o600)
    with pytest.raises(KeyFault, match=r"tokens\.pem"):
        StoredKeys(tmp_path).sign({})


def test_where_nothing_was_ever_signed_no_token_makes_a_key(tokens: Tokens, tmp_path: Path) -> None:
    assert tokens.principal("a.b.c") is None
    assert not (tmp_path / "keys").exists()


# --- what an agent shows ---


def test_an_agent_shows_what_it_was_given_last_and_keeps_it_for_its_heirs(
    tokens: Tokens, tmp_path: Path, clock: Clock
) -> None:
    given, own = tmp_path / "given", tmp_path / "own.token"
    given.write_text(f"{tokens.for_pilot('lyon')}\n")
    shown = Credentials(str(given), own)
    first = shown()
    assert (first, ends_at(first)) == (given.read_text().strip(), NOW + LIFE_SECONDS)
    clock.now += 100.0
    second = tokens.for_pilot("lyon")
    shown.renewed(second)
    shown.renewed(first)  # an answer that was long on its way
    shown.look_again()
    assert shown() == second
    assert (own.read_text().strip(), stat.S_IMODE(own.stat().st_mode)) == (second, 0o600)
    assert given.read_text().strip() == first
    assert Credentials(str(given), own)() == second
    clock.now += 100.0
    third = tokens.for_pilot("lyon")
    given.write_text(third)  # whoever gave it out did so again
    shown.look_again()
    assert shown() == third


def test_a_token_that_says_no_end_is_what_its_file_says_now(tmp_path: Path) -> None:
    given = tmp_path / "token"
    given.write_text("plain-one")
    shown = Credentials(str(given), tmp_path / "own")
    assert shown() == "plain-one"
    given.write_text("plain-two")
    shown.look_again()
    assert shown() == "plain-two"
    given.unlink()
    shown.look_again()
    assert shown() == "plain-two"
    assert Credentials("")() == ""


def test_an_agent_whose_own_token_is_not_taken_shows_that_of_its_site_beside_it(
    tokens: Tokens, tmp_path: Path, clock: Clock
) -> None:
    given = tmp_path / "given"
    given.write_text(tokens.for_pilot("lyon"))
    of_site = tokens.principal(given.read_text())
    assert of_site is not None
    shown = Credentials(str(given), tmp_path / "own.token")
    own = tokens.pilot_token(of_site, "p.1")
    shown.renewed(own)
    clock.now += 2 * LIFE_SECONDS
    given.write_text(tokens.for_pilot("lyon"))
    shown.look_again()
    assert (shown(), shown.ended) == (own, "")
    assert shown.refused()
    assert (shown(), shown.ended) == (given.read_text(), own)
    assert not shown.refused()  # they take turns, with a pause
    assert (shown(), shown.ended) == (own, "")
    assert shown.refused()
    another = tokens.pilot_token(of_site, "p.1")
    shown.renewed(another)
    shown.look_again()
    assert (shown(), shown.ended) == (another, "")
