"""Cached files over HTTP: which a user sees, why they are kept, and who may pin and purge them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pilotage.engine.inbound.operations import operate
from pilotage.model.exchange.operations import FetchFile, Kill, PinFiles
from pilotage.model.exchange.reports import FileArrived
from tests.kit.served_book import event, registered
from tests.kit.service_clients import ServiceClient, code_of, service_client_in
from tests.kit.small_engine import Small
from tests.kit.small_plans import bag, site, with_files

A, B, C, TOOLS = "s3://data/a b.root", "sftp://tape/x/b.root", "s3://data/c[1].root", "s3://data/tools.tar"
SHA = "a" * 64
OF_BOB, EVE = "of-bob", "reads-only"


def wish(locator: str, *, owner: str, wish: str = "retain-temporarily", **more: Any) -> dict[str, Any]:
    return {"locator": locator, "key": f"k-{locator[-5:]}", "name": "ab/ab", "owner": owner, "wish": wish, **more}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceClient]:
    """Files that ann and bob asked for, of which a job of bob's still needs one."""
    files = [
        wish(A, owner="ann"),
        wish(B, owner="bob", wish="retain-indefinitely"),
        wish(C, owner="bob"),
        wish(TOOLS, owner="ann", software=True),
    ]
    came = [
        {"locator": each["locator"], "key": each["key"], "size_bytes": 10 + n, "sha256": SHA}
        for n, each in enumerate(files)
    ]
    with service_client_in(tmp_path) as found:
        found.log(
            event(1, "SiteDescribed", {"kind": "pbs", "status": "candidate"}, site="local"),
            event(2, "SiteDescribed", {"kind": "pbs", "status": "candidate"}, site="other"),
            event(3, "FetchesOrdered", {"files": files}, site="local"),
            event(4, "FilesFetched", {"files": came}, site="local"),
            event(5, "FetchesOrdered", {"files": files[:1]}, site="other"),
            registered(6, "bobs", owner="bob"),
        )
        small = Small(site("local", cores=4))
        for job, owner, needs in (("anns", "ann", [A, TOOLS]), ("bobs", "bob", [B, C])):
            small.submit(with_files(bag(1), {"1.1.1": needs}, software=[TOOLS]), job=job, owner=owner)
        small.step(
            *(
                FileArrived(site="local", key=each.key, size_bytes=10, sha256=SHA)
                for each in small.take(FetchFile)
                if each.locator != A
            )
        )
        found.jobs.engine = small.engine
        yield found


def listed(service: ServiceClient, query: str = "", *, token: str = OF_BOB) -> list[str]:
    status, told = service.get(f"/v1/files{query}", token=token)
    assert status == 200, told
    assert told["next"] is None
    return [f"{each['site']} {each['locator']}" for each in told["files"]]


def test_a_user_sees_the_files_that_their_jobs_asked_for_and_an_operator_sees_all(service: ServiceClient) -> None:
    assert sorted(listed(service)) == [f"local {C}", f"local {B}"]
    everything = service.get("/v1/files")[1]["files"]
    assert len(everything) == 5
    assert listed(service, token=EVE) == []


def test_a_user_sees_files_that_a_job_needs_which_they_may_read(service: ServiceClient) -> None:
    service.log(event(7, "AccessSet", {"rules": [{"principal": "eve", "rights": ["read"]}]}, job="bobs"))
    assert sorted(listed(service, token=EVE)) == [f"local {C}", f"local {B}"]


def test_a_file_is_told_with_its_state_its_wishes_and_its_last_use(service: ServiceClient) -> None:
    (file,) = service.get(f"/v1/files?site=local&pattern={quote(B)}")[1]["files"]
    shown = {name: file[name] for name in ("site", "state", "size_bytes", "sha256", "wish", "wishes", "pins")}
    assert shown == {
        "site": "local",
        "state": "present",
        "size_bytes": 11,
        "sha256": SHA,
        "wish": "retain-indefinitely",
        "wishes": {"bob": "retain-indefinitely"},
        "pins": [],
    }
    assert file["used_at"] > 0


def test_files_are_found_by_site_and_by_pattern(service: ServiceClient) -> None:
    assert [each["site"] for each in service.get("/v1/files?site=other")[1]["files"]] == ["other"]
    assert listed(service, "?pattern=b.root") == [f"local {B}"]
    assert listed(service, f"?pattern={quote('sftp:*.root')}") == [f"local {B}"]
    assert listed(service, f"?pattern={quote(C)}") == [f"local {C}"]
    assert code_of(service.get("/v1/files?site=nowhere")) == (404, "unknown_site")


def test_pages_go_through_all_sites(service: ServiceClient) -> None:
    found, cursor = [], ""
    for _ in range(20):
        told = service.get(f"/v1/files?limit=1{cursor and '&cursor=' + quote(cursor)}")[1]
        found += [(each["site"], each["locator"]) for each in told["files"]]
        if told["next"] is None:
            break
        cursor = told["next"]
    assert sorted(found) == sorted([*(("local", each) for each in (A, B, C, TOOLS)), ("other", A)])
    assert code_of(service.get("/v1/files?cursor=local/1")) == (400, "bad_cursor")


def test_why_names_the_job_that_needs_a_file_and_when_it_may_go(service: ServiceClient) -> None:
    status, told = service.get(f"/v1/files/why?pattern={quote(B)}", token=OF_BOB)
    assert status == 200
    (reason,) = told["files"]
    assert (reason["goes"], reason["others"]) == ("after-its-need", 0)
    assert reason["needs"] == [
        {
            "job": "bobs",
            "owner": "bob",
            "packages": 1,
            "some": ["1.1.1"],
            "waiting": 0,
            "wish": "retain-temporarily",
        }
    ]
    assert reason["message"] == (
        "it stays as long as 1 package that may still run may read it;"
        " then it stays until a job of bob releases it, or it is purged"
    )
    assert service.get("/v1/files/why?pattern=none", token=OF_BOB)[1]["files"] == []
    assert code_of(service.get("/v1/files/why")) == (400, "malformed")


def test_a_purge_leaves_needed_files_and_those_of_others_alone_and_says_so(service: ServiceClient) -> None:
    status, told = service.post("/v1/files/purge", {"patterns": ["*"], "dry_run": True}, token=OF_BOB)
    assert status == 200, told
    assert (told["changed"], told["kept"], service.jobs.file_operations) == (0, 2, [])
    assert {each["message"] for each in told["kept_files"]} == {"needed by bobs (1 package)"}
    told = service.post("/v1/files/purge", {"patterns": [A], "dry_run": True}, token=OF_BOB)[1]
    assert (told["kept"], told["unmatched"]) == (0, [A])


def test_a_file_is_pinned_for_the_user_and_a_repeated_request_is_carried_out_once(service: ServiceClient) -> None:
    for _ in range(2):
        status, told = service.post("/v1/files/pin", {"patterns": ["b.root"]}, token=OF_BOB, key="once")
        assert (status, told["changed"], told["files"]) == (200, 1, [{"site": "local", "locator": B}])
    (operation,) = service.jobs.file_operations
    assert operation == PinFiles(site="local", locators=(B,), by="bob")
    assert service.jobs.engine.state.files.at("local").entries[B].pins == ("bob",)


def test_software_alone_is_purged_by_its_flag(service: ServiceClient) -> None:
    told = service.post("/v1/files/purge", {"software": True, "dry_run": True})[1]
    assert [each["locator"] for each in told["kept_files"]] == [TOOLS]


def test_a_request_that_names_no_files_is_refused(service: ServiceClient) -> None:
    assert code_of(service.post("/v1/files/purge", {})) == (400, "malformed")
    assert code_of(service.post("/v1/files/purge", {"files": []})) == (400, "malformed")
    assert code_of(service.post("/v1/files/purge", {"patterns": ["*"], "site": "nowhere"})) == (404, "unknown_site")


def test_what_nobody_needs_is_purged_unless_another_user_keeps_it(service: ServiceClient) -> None:
    operate(service.jobs.engine.state, Kill(job="bobs"))
    service.log(event(7, "RetentionSet", {"files": [retained(C, owner="ann")]}, site="local"))
    told = service.post("/v1/files/purge", {"patterns": ["*"]}, token=OF_BOB)[1]
    assert told["files"] == [{"site": "local", "locator": B}]
    assert (told["changed"], told["changed_bytes"]) == (1, 11)
    assert [each["message"] for each in told["kept_files"]] == ["ann wants to keep it, too"]
    cache = service.jobs.engine.state.files.at("local")
    assert cache.removing_bytes == cache.entries[B].size_bytes


def test_an_operator_ends_the_pins_of_everyone(service: ServiceClient) -> None:
    service.post("/v1/files/pin", {"patterns": [B]}, token=OF_BOB)
    service.log(event(7, "RetentionSet", {"files": [{"locator": B, "owner": "bob", "pinned": True}]}, site="local"))
    operate(service.jobs.engine.state, Kill(job="bobs"))
    told = service.post("/v1/files/purge", {"patterns": [B]})[1]
    assert [each["message"] for each in told["kept_files"]] == ["pinned by bob"]
    assert service.post("/v1/files/unpin", {"patterns": [B]})[1]["changed"] == 1
    assert service.jobs.engine.state.files.at("local").entries[B].pins == ()


def retained(locator: str, *, owner: str) -> dict[str, Any]:
    return {"locator": locator, "owner": owner, "wish": "retain-temporarily"}
