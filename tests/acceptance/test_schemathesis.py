"""Requests made up from the OpenAPI document: no answer may break what the document promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig

from pilotage.service.journal.writer import Batch
from tests.kit.running_jobs import running_services
from tests.kit.served_book import TOKEN, event, listening, registered

# A text that is a string is not yet a query, a cursor or a batch that makes sense: these are refused with a reason.
_CONFIG = SchemathesisConfig.from_dict(
    {
        "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 409, 410, 422]}},
        # The session always sends its token, so a request that is wrong only for want of one would be right.
        "generation": {"with-security-parameters": False},
    }
)


_PLACE: dict[str, Any] = {"job": "a", "package": "1.1.1", "attempt": 1}
_HISTORY = [
    registered(1, "a"),
    event(2, "JobAccepted", job="a"),
    event(3, "AttemptCreated", {"site": "lyon", "lease_seconds": 60}, **_PLACE),
    event(4, "AttemptFinished", {"exit_code": "SUCCESS"}, **_PLACE),
    event(5, "CommitGranted", **_PLACE),
    event(6, "SiteDescribed", {"kind": "slurm"}, site="lyon"),
    event(7, "PilotStarted", {"site": "lyon"}, pilot="pilot-1"),
    event(8, "NodeDescribed", {"node": "wn1", "site": "lyon"}, pilot="pilot-1"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        yield session


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, session: requests.Session) -> Iterator[Any]:
    with running_services(tmp_path_factory.mktemp("book")) as (services, _), listening(services) as url:
        services.commits.stop()  # nobody waits for news: a long poll answers at once
        checked, refused, _ = services.codec.read_batch(msgspec.json.encode({"events": _HISTORY}))
        assert not refused
        services.writer.submit(Batch(checked)).result()  # as the engine: nobody else may say this
        document = session.get(f"{url}/schema").json()
        loaded = schemathesis.openapi.from_dict(document, config=_CONFIG)
        loaded.config.update(base_url=url)
        yield loaded


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_answer_breaks_what_the_document_promises(mode: GenerationMode, api: Any, session: requests.Session) -> None:
    operations = [each.ok() for each in api.get_all_operations()]
    assert len(operations) > 25
    if mode is GenerationMode.NEGATIVE:
        operations = [each for each in operations if _can_be_asked_wrongly(each)]
        assert len(operations) > 25
    for operation in operations:

        @settings(max_examples=12, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers_as_promised(case: Case[Any]) -> None:
            case.call_and_validate(session=session)

        answers_as_promised()


def _can_be_asked_wrongly(operation: Any) -> bool:
    """Whether it takes anything but plain texts in its path and headers, or plain bytes: these are never wrong.

    Of the others some request must be found that is wrong, or the test fails.
    """
    said = operation.definition.raw
    takes = said.get("requestBody", {}).get("content", {})
    return "application/json" in takes or not all(map(_is_any_text, said.get("parameters", ())))


def _is_any_text(parameter: dict[str, Any]) -> bool:
    return parameter["in"] in ("path", "header") and parameter["schema"].keys() == {"type", "description"}
