"""Extras: what is missing is named, and only what is missing."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from pilotage.model.errors import (
    EXTRAS,
    PARTS,
    MissingExtra,
    MissingPart,
    extra,
    missing_parts,
    part,
    refuse_missing_parts,
)


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in EXTRAS[name]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match="needed to try") as missing, extra(name, purpose="to try"):
            importlib.import_module(module)
        assert missing.value.next_step == f"install it: pip install 'pilotage[{name}]'"


def test_a_library_that_wraps_nothing_is_missing_too() -> None:
    with pytest.raises(MissingExtra, match="no pq wrapper"), extra("postgres", purpose="to try"):
        raise ImportError("no pq wrapper available")


def test_a_fault_of_our_own_is_not_taken_for_something_missing() -> None:
    for guarded in (extra("postgres", purpose="to try"), part(purpose="to try")):
        with pytest.raises(ModuleNotFoundError, match=r"pilotage\.nowhere"), guarded:
            importlib.import_module("pilotage.nowhere")


@pytest.mark.parametrize("module", sorted(PARTS))
def test_a_part_that_is_gone_is_named_before_a_service_is_started_and_where_it_is_used(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_parts() == []
    monkeypatch.setitem(sys.modules, module, None)
    assert missing_parts() == [PARTS[module]]
    with pytest.raises(MissingPart, match=f"a service needs {PARTS[module]}") as missing:
        refuse_missing_parts()
    assert missing.value.next_step == f"install it: pip install {PARTS[module]}"
    with pytest.raises(MissingPart, match="is needed to try"), part(purpose="to try"):
        importlib.import_module(module)


def test_a_plain_installation_has_every_part(root: Path) -> None:
    needed = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[\[><=]", requirement)[0] for requirement in needed} >= set(PARTS.values())


def test_every_extra_is_one_of_the_distribution(root: Path) -> None:
    offered = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, modules in EXTRAS.items():
        distributions = {re.split(r"[\[><=]", requirement)[0] for requirement in offered[name]}
        assert distributions == modules
