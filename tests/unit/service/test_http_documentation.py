from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from pilotage.book.codec import RefusalCode
from pilotage.model.settings.settings import Settings
from pilotage.reading.access import SCOPES
from pilotage.service.http.errors import STATUSES
from pilotage.service.http.framework import make_app
from pilotage.service.http.services import Services
from tests.kit.served_book import WallClock, access_of, sqlite_journal


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with sqlite_journal(tmp_path_factory.mktemp("book")) as journal:
        services = Services(journal, access=access_of(), settings=Settings(), clock=WallClock())
        yield make_app(services).openapi_schema.to_schema()


@pytest.fixture(scope="module")
def pages(root: Path) -> str:
    return "\n".join(page.read_text("utf-8") for page in sorted((root / "docs").rglob("*.md")))


def test_every_path_is_in_the_documentation(document: dict[str, Any], pages: str) -> None:
    assert [path for path in document["paths"] if not re.search(re.escape(path) + r"[`?]", pages)] == []


def test_every_code_and_scope_is_in_the_documentation(pages: str) -> None:
    codes = {answer.code for answer in STATUSES.values()} | set(get_args(RefusalCode)) | set(SCOPES)
    assert codes - set(re.findall(r"`([a-z_.]+)`", pages)) == set()


def test_every_operation_is_described_and_needs_a_token(document: dict[str, Any]) -> None:
    assert document["security"] == [{"token": []}]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            assert operation.get("summary"), (method, path)
            if path != "/healthz":
                assert "401" in operation["responses"], (method, path)
                assert operation.get("security") is None, (method, path)


def test_the_batch_is_described_though_no_signature_tells_of_it(document: dict[str, Any]) -> None:
    body = document["paths"]["/v1/events"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    event = body["properties"]["events"]["items"]
    assert set(event["required"]) == {"source", "stream", "n", "type", "time"}
    assert "JobRegistered" in event["properties"]["type"]["enum"]
