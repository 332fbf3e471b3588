"""A book whose packages lie in a tree by their key, as they did once, is read and written as one of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.adapters.journals.sqlite import schema
from tests.kit.events import a_short_job
from tests.kit.sqlite_books import keep, known, opened


def test_packages_in_a_tree_by_key_are_kept_and_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "today") as journal:
        keep(journal, a_short_job(packages=5))
        expected, job = known(journal, "j1"), journal.job("j1")
        assert job is not None
        finals = list(journal.finals(job))
    with monkeypatch.context() as patch:
        patch.setattr(schema, "PACKAGE_FACTS", f"{schema.PACKAGE_FACTS} WITHOUT ROWID")
        with opened(tmp_path / "once"):
            pass
    with opened(tmp_path / "once") as journal:
        keep(journal, a_short_job(packages=5))
        assert known(journal, "j1") == expected
        assert list(journal.finals(job)) == finals
        journal.seal("j1")
        journal.unseal(["j1"])
        assert known(journal, "j1")["packages"] == expected["packages"]
