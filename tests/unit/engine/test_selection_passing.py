"""A site that lacks nothing of what is asked for is refused by no filter, and without a word."""

from __future__ import annotations

import pytest

from pilotage.engine.selection.filters import FILTERS, Requirements, allows, described, refusals
from pilotage.model.site import Site


@pytest.mark.parametrize("name", FILTERS)
def test_who_asks_for_nothing_is_told_nothing(name: str) -> None:
    assert FILTERS[name](described(Site(name="a", mode="bound")), Requirements()) == ""


def test_a_site_allows_what_no_filter_refuses() -> None:
    site = described(Site(name="a", mode="bound"))
    assert allows(site, Requirements()) is True
    assert list(refusals(site, Requirements())) == []
    assert allows(site, Requirements(executor="b")) is False
    [refusal] = refusals(site, Requirements(executor="b"))
    assert (refusal.filter, refusal.message) == ("executor", "it may run at b only")
