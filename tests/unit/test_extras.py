"""Extras: what is missing is named, and only what is missing."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from pilotage.model.extras import EXTRAS, MissingExtra, extra

MODULES = {"PyJWT": "jwt"}
"""What distributions are called that have another name than their module."""


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


def test_a_fault_of_our_own_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pilotage\.nowhere"), extra("server", purpose="to try"):
        importlib.import_module("pilotage.nowhere")


def test_every_extra_is_one_of_the_distribution(root: Path) -> None:
    offered = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, modules in EXTRAS.items():
        distributions = {re.split(r"[\[><=]", requirement)[0] for requirement in offered[name]}
        assert {MODULES.get(each, each) for each in distributions} == modules
