"""Sites over HTTP: how each stands, why nothing is started there, and who may do something about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.engine.state.sites import PilotRequest
from pilotage.model.exchange.operations import SiteDeed
from pilotage.model.exchange.reports import Noticed
from pilotage.model.sites.entry import SiteEntry
from pilotage.reading.views import SitesConfiguration
from tests.kit.served_book import event
from tests.kit.service_clients import ServiceClient, code_of, service_client_in


class Kept:
    """Stands in for who keeps the sites."""

    known = SitesConfiguration(
        file="/p/sites.yaml",
        entries={"local": SiteEntry(name="local", kind="slurm", queue="long", mode="pilots")},
        fault="sites.yaml:3: bad",
    )

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing runs."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceClient]:
    with service_client_in(tmp_path) as found:
        assert found.services.backend is not None
        found.services.backend.sites = Kept()
        yield found


def one(service: ServiceClient, name: str = "local") -> dict[str, Any]:
    status, told = service.get("/v1/sites")
    assert status == 200
    return next(each for each in told["sites"] if each["site"] == name)


def dead_start(service: ServiceClient, n: int, key: str, words: str) -> None:
    service.log(
        event(n, "PilotRequested", {"site": "local"}, pilot=key),
        event(n + 1, "PilotEnded", {"reason": "failed", "stderr": words}, pilot=key),
    )


def test_all_sites_are_told_with_their_file_and_what_is_wrong_with_it(service: ServiceClient) -> None:
    service.log(event(1, "SiteDescribed", {"kind": "pbs", "status": "candidate"}, site="old"))
    told = service.get("/v1/sites")[1]
    assert ([each["site"] for each in told["sites"]], told["file"]) == (["local", "old"], "/p/sites.yaml")
    assert told["fault"] == "sites.yaml:3: bad"
    assert one(service, "old")["status"] == "gone"  # whatever it was when a service last knew it
    assert (one(service)["kind"], one(service)["status"], one(service)["pilots_live"]) == ("slurm", "candidate", 0)
    assert one(service, "old")["status"] == "gone"  # whatever the book has of it, nothing goes there


def test_a_site_at_which_pilots_die_tells_their_last_words_and_that_nothing_more_is_submitted(
    service: ServiceClient,
) -> None:
    dead_start(service, 1, "local-1", "an old one")
    dead_start(service, 3, "local-2", "python3: not found")
    service.log(event(5, "PilotRequested", {"site": "other"}, pilot="local-x-1"))
    state = service.jobs.engine.state.sites.by_name["local"]
    assert one(service)["last_words"] == ""  # it is well now, whatever was before
    state.dead_starts, state.quiet_until = 5, service.jobs.engine.state.clock.now + 60.0
    found = one(service)
    assert (found["last_words"], found["dead_starts"]) == ("python3: not found", 5)
    assert found["closed"] == "5 pilots died there before contacting us: nothing more is submitted for 60 s"
    service.jobs.engine.state.selection.hibernate("local", at=0.0, message="for repair")
    assert "for repair" in one(service)["closed"]  # that outlasts the other


def test_one_site_is_told_with_its_entry_its_reasons_and_its_pilots(service: ServiceClient) -> None:
    dead_start(service, 1, "local-1", "python3: not found")
    status, told = service.get("/v1/sites/local")
    assert (status, told["entry"]) == (200, {"name": "local", "kind": "slurm", "queue": "long"})
    assert [(each["pilot"], each["stderr"]) for each in told["pilots"]] == [("local-1", "python3: not found")]
    assert [each["code"] for each in told["reasons"]][:1] == ["wanted"]
    assert code_of(service.get("/v1/sites/nowhere")) == (404, "unknown_site")


def test_a_pilot_that_is_not_heard_is_told_with_its_words(service: ServiceClient) -> None:
    service.log(event(1, "PilotRequested", {"site": "local"}, pilot="local-1"))
    state = service.jobs.engine.state.sites.by_name["local"]
    state.requests["local-1"] = PilotRequest("local-1", state)
    state.noticed = {"local-1": Noticed(key="local-1", state="running", words="no answer from the service: refused")}
    found = one(service)
    assert "without contacting the service" in found["unheard"]
    assert found["last_words"] == "no answer from the service: refused"
    told = service.get("/v1/sites/local")[1]
    assert [(each["key"], each["state"]) for each in told["noticed"]] == [("local-1", "running")]


def test_a_silent_site_says_why(service: ServiceClient) -> None:
    service.jobs.engine.state.sites.by_name["local"].answers = False
    service.jobs.site_words["local"] = "ssh: connection refused"
    found = one(service)
    assert (found["status"], found["closed"], found["message"]) == (
        "silent",
        "it does not answer",
        "ssh: connection refused",
    )
    reason = service.get("/v1/sites/local")[1]["reasons"][0]
    assert (reason["code"], reason["passes"]) == ("closed", False)


def test_a_site_that_answers_says_why_things_wait_there(service: ServiceClient) -> None:
    service.jobs.site_words["local"] = "sbatch: QOSMaxSubmitJobPerUserLimit"
    found = one(service)
    assert (found["status"], found["closed"]) == ("candidate", "")
    assert found["message"] == found["says"] == "sbatch: QOSMaxSubmitJobPerUserLimit"


def test_the_site_that_was_probably_meant_is_named(service: ServiceClient) -> None:
    for told in (service.get("/v1/sites/locla"), service.post("/v1/sites/locla/wake", b"")):
        assert code_of(told) == (404, "unknown_site")
        assert told[1]["error"]["hint"] == "did you mean 'local'?"


@pytest.mark.parametrize("deed", ["hibernate", "wake", "probe", "try"])
def test_an_operator_changes_a_site_and_nobody_else(service: ServiceClient, deed: SiteDeed) -> None:
    path = f"/v1/sites/local/{deed}"
    assert code_of(service.post(path, b"", token="of-bob")) == (403, "forbidden")
    assert code_of(service.post("/v1/sites/nowhere/wake", b"")) == (404, "unknown_site")
    assert code_of(service.post(path, {"massage": "x"})) == (400, "malformed")
    assert code_of(service.post(path, b"[")) == (400, "malformed")
    assert service.jobs.site_operations == []
    assert service.post(path, {"message": "why"}, key="k")[0] == 200
    assert service.post(path, {"message": "why"}, key="k")[0] == 200
    assert service.jobs.site_operations == [(deed, "local", "why")]
