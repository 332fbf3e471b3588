"""Files that a store does not give come from the caches of other sites: an unavailable input is treated, not replicated."""

from __future__ import annotations

import msgspec

from pilotage.engine.files.queries import cached_file
from pilotage.model.events import file_payloads
from pilotage.model.events.healing_payloads import HealingDecided
from pilotage.model.exchange.operations import FetchFile, SubmitPilot
from pilotage.model.exchange.reports import FileArrived, FileNotFetched
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, site, with_files

FILE = "s3://store/a"
SHA = "a" * 64


def two_sites_of_which_one_has_the_file(small: Small) -> FetchFile:
    """The file has come to one of two sites; returns the order of the other."""
    small.submit(with_files(bag(8), {f"1.{line}.1": [FILE] for line in range(1, 9)}))
    small.take(SubmitPilot)
    one, two = small.take(FetchFile)
    small.step(FileArrived(site=one.site, key=one.key, size_bytes=10, sha256=SHA, version="v7"))
    return two


def refuse(small: Small, order: FetchFile, *, reason: str = "store-unreachable") -> None:
    small.step(FileNotFetched(site=order.site, key=order.key, reason=reason, message="no route"))


def until_copied(small: Small, order: FetchFile) -> FetchFile:
    """The store refuses until the other cache is asked."""
    for _ in range(6):
        refuse(small, order)
        for _ in range(120):
            small.wait(10.0)
            if found := small.take(FetchFile):
                (order,) = found
                break
        if order.copy is not None:
            return order
    raise AssertionError("no copy was ordered")


def test_a_file_that_its_store_does_not_give_is_copied_from_another_cache() -> None:
    with Small(site("a", cores=4), site("b", cores=4)) as small:
        order = until_copied(small, two_sites_of_which_one_has_the_file(small))
        assert order.copy is not None
        assert (order.copy.sha256, order.copy.version) == (SHA, "v7")
        source = cached_file(small.engine.state, order.copy.site, FILE)
        assert source is not None
        assert (order.copy.name, order.copy.site != order.site) == (source.name, True)
        ordered = [
            part
            for each in small.told(file_payloads.FetchesOrdered)
            for part in msgspec.json.decode(each.data, type=file_payloads.FetchesOrdered).files
            if part.source
        ]
        assert [part.source for part in ordered] == [order.copy.site]
        (decision,) = [each for each in small.told(HealingDecided) if each.n == ordered[0].decision]
        said = msgspec.json.decode(decision.data, type=HealingDecided)
        assert said.incidents[said.drawn - 1].kind == "input-unavailable"
        assert [(each.treatment, each.site) for each in said.treated] == [("copy-file", order.site)]
        small.step(FileArrived(site=order.site, key=order.key, size_bytes=10, sha256=SHA))
        assert cached_file(small.engine.state, order.site, FILE) is not None


def test_a_copy_that_is_lost_says_nothing_of_the_file_and_the_store_is_asked_again() -> None:
    with Small(site("a", cores=4), site("b", cores=4)) as small:
        order = until_copied(small, two_sites_of_which_one_has_the_file(small))
        refuse(small, order, reason="not-in-store")
        assert not small.engine.state.files.at(order.site).faults[FILE].given_up
        small.wait(3600.0)
        again = small.take(FetchFile)
        assert again
        assert again[0].site == order.site
        small.take(SubmitPilot)


def test_nothing_is_copied_that_no_other_cache_has() -> None:
    with Small(site("a", cores=4)) as small:
        small.submit(with_files(bag(8), {f"1.{line}.1": [FILE] for line in range(1, 9)}))
        small.take(SubmitPilot)
        (order,) = small.take(FetchFile)
        for _ in range(3):
            refuse(small, order)
            found: list[FetchFile] = []
            while not found:
                small.wait(10.0)
                found = small.take(FetchFile)
            (order,) = found
            assert order.copy is None
        said = [msgspec.json.decode(each.data, type=HealingDecided) for each in small.told(HealingDecided)]
        assert any("no other site" in each.message for each in said)
        small.take(SubmitPilot)
