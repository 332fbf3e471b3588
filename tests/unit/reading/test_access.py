from __future__ import annotations

import msgspec
import pytest

from pilotage.book.codec import Checked, Codec
from pilotage.book.rows.rows import JobRow
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.reading.access import (
    ANY_OWNER,
    DECIDE,
    READ,
    SCOPES,
    WRITE,
    Access,
    Forbidden,
    Principal,
    Right,
    Unauthenticated,
    allowed_events,
    digest_of,
    left_to_engine,
    local_principal,
    may,
    require,
    require_scope,
)
from tests.kit.served_book import event, registered

ANN = Principal(user="ann", scopes=frozenset({READ, WRITE}))
BOB = Principal(user="bob", groups=frozenset({"physics"}), scopes=frozenset({READ, WRITE}))
ROOT = local_principal("root")


def job(*rules: tuple[str, list[str]], owner: str = "ann") -> JobRow:
    access = msgspec.json.encode([{"principal": who, "rights": rights} for who, rights in rules]).decode()
    return JobRow(job_id=1, job="j", owner=owner, access=access)


def checked(*events: dict[str, object]) -> list[Checked]:
    found, refused, _ = Codec().read_batch(msgspec.json.encode({"events": events}))
    assert not refused
    return found


@pytest.mark.parametrize("header", ["Bearer right", "bearer right", "BEARER   right ", " Bearer right"])
def test_a_known_token_names_its_principal(header: str) -> None:
    assert Access({digest_of("wrong"): BOB, digest_of("right"): ANN}).principal(header) == ANN


@pytest.mark.parametrize(
    "header", [None, "", "right", "Bearer", "Bearer ", "Bearer wrong", "Basic right", "Bearer righ"]
)
def test_anything_else_is_nobody(header: str | None) -> None:
    with pytest.raises(Unauthenticated, match="Authorization: Bearer TOKEN"):
        Access({digest_of("right"): ANN}).principal(header)


def test_a_digest_does_not_open_the_door() -> None:
    with pytest.raises(Unauthenticated):
        Access({digest_of("right"): ANN}).principal(f"Bearer {digest_of('right')}")


def test_the_local_user_may_do_everything() -> None:
    assert ROOT.scopes == frozenset(SCOPES)
    assert may(ROOT, "cancel", job())


def test_a_token_for_a_site_or_a_package_has_no_rights_of_its_user() -> None:
    for bound in (
        Principal(user="ann", scopes=frozenset(SCOPES), site="lyon"),
        Principal(user="ann", scopes=frozenset(SCOPES), package=AttemptRef("j", "1.1.1", 1)),
    ):
        assert not may(bound, "read", job(owner="ann"))


def test_a_missing_scope_is_named() -> None:
    require_scope(ANN, READ)
    with pytest.raises(Forbidden, match=r"book\.decide"):
        require_scope(ANN, DECIDE)


@pytest.mark.parametrize(
    "rules, right, answer",
    [
        ((), "read", False),
        ((("bob", ["read"]),), "read", True),
        ((("bob", ["read"]),), "modify", False),
        ((("bob", ["modify"]),), "modify", True),
        ((("bob", ["modify"]),), "read", True),
        ((("bob", ["modify"]),), "cancel", False),
        ((("bob", []),), "read", False),
        ((("eve", ["read"]),), "read", False),
        ((("group:physics", ["cancel"]),), "cancel", True),
        ((("group:chemistry", ["cancel"]),), "cancel", False),
        ((("physics", ["read"]),), "read", False),
        ((("eve", ["read"]), ("group:physics", ["read"])), "read", True),
    ],
)
def test_the_access_list_decides_for_those_who_are_not_the_owner(
    rules: tuple[tuple[str, list[str]], ...], right: Right, *, answer: bool
) -> None:
    assert may(BOB, right, job(*rules)) is answer
    assert may(ANN, right, job(*rules))


def test_a_user_called_like_a_group_is_not_in_it() -> None:
    assert not may(Principal(user="group:physics"), "read", job(("group:physics", ["read"])))


def test_who_may_not_is_told_which_job() -> None:
    with pytest.raises(Forbidden, match="job j: bob may not modify"):
        require(BOB, "modify", job())


def test_a_job_is_registered_for_oneself_only() -> None:
    batch = checked(registered(1, "a", owner="bob", source="client"), registered(2, "b", owner="ann", source="client"))
    allowed, refused = allowed_events(BOB, batch, find_job=lambda _: None)
    assert [one.index for one in allowed] == [0]
    assert [(each.index, each.code) for each in refused] == [(1, "forbidden")]
    assert "bob" in refused[0].message


def test_who_acts_for_others_registers_for_others() -> None:
    trusted = Principal(user="portal", scopes=frozenset({WRITE, ANY_OWNER}))
    batch = checked(registered(1, "a", owner="bob", source="client"))
    assert allowed_events(trusted, batch, find_job=lambda _: None) == (batch, [])


def test_only_a_scheduler_speaks_as_the_service() -> None:
    batch = checked(event(1, "Noted", {"text": "x"}))
    assert allowed_events(ANN, batch, find_job=lambda _: None)[1][0].code == "forbidden"
    scheduler = Principal(user="ann", scopes=frozenset({WRITE, DECIDE}))
    assert allowed_events(scheduler, batch, find_job=lambda _: None) == (batch, [])


@pytest.mark.parametrize("kind, data", [("OwnerSet", {"owner": "bob"}), ("AccessSet", {"rules": []})])
def test_the_right_to_modify_is_not_the_right_to_give_away(kind: str, data: dict[str, object]) -> None:
    batch = checked(event(1, kind, data, job="j", source="client"))
    shared = job(("bob", ["modify"]))
    assert allowed_events(BOB, batch, find_job=lambda _: shared)[0] == []
    assert allowed_events(ANN, batch, find_job=lambda _: shared)[0] == batch


def test_a_known_job_is_not_taken_over_by_registering_it_again() -> None:
    batch = checked(registered(1, "j", owner="bob", source="client"))
    allowed, refused = allowed_events(BOB, batch, find_job=lambda _: job(("bob", ["modify"])))
    assert (list(allowed), refused[0].code) == ([], "forbidden")


def test_tags_need_the_right_to_modify_and_the_job_is_looked_up_once() -> None:
    asked: list[str] = []

    def find_job(name: str) -> JobRow:
        asked.append(name)
        return job(("bob", ["read"]))

    tagged = [event(n, "Tagged", {"name": "a", "value": "b"}, job="j", source="client") for n in (1, 2)]
    allowed, refused = allowed_events(BOB, checked(*tagged), find_job=find_job)
    assert (list(allowed), [each.index for each in refused], asked) == ([], [0, 1], ["j"])


def test_events_of_a_job_that_nobody_knows_yet_are_taken() -> None:
    batch = checked(event(1, "Tagged", {"name": "a", "value": "b"}, job="j", source="client"))
    assert allowed_events(BOB, batch, find_job=lambda _: None) == (batch, [])


@pytest.mark.parametrize("kind, data", [("OwnerSet", {"owner": "bob"}), ("AccessSet", {"rules": []})])
def test_nobody_takes_over_a_job_before_it_is_registered(kind: str, data: dict[str, object]) -> None:
    batch = checked(event(1, kind, data, job="j", source="client"))
    allowed, refused = allowed_events(BOB, batch, find_job=lambda _: None)
    assert (list(allowed), [each.code for each in refused]) == ([], ["forbidden"])


def test_what_concerns_no_job_is_logged_by_the_engine_and_its_agents_only() -> None:
    node = event(1, "NodeDescribed", {"node": "wn1"}, source="client", pilot="p")
    allowed, [refusal] = left_to_engine(checked(node), find_job=lambda _: None)
    assert (allowed, refusal.code) == ([], "forbidden")
    assert refusal.message == "only this service and its agents may log this event"
