"""Files for site agents over real sockets: only ordered ones, only for their own site, ranged, or by a presigned URL."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.stores.content_store import FolderContent
from pilotage.adapters.stores.kept_content import KeptContent
from pilotage.agent.link.download import Downloads, FileFacts
from pilotage.app.store_registry import StoreRegistry
from pilotage.model.exchange.operations import FetchFile
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import FindsStores
from pilotage.ports.store import AccessDenied, CredentialExpired, StoreUnreachable
from pilotage.service.transfers.transfers import SiteCache, Transfers
from tests.conformance.stores.places import bucket_place
from tests.engines.s3 import S3Server
from tests.kit.faulty_store import FaultyStore, Stall, Stores, cut
from tests.kit.running_jobs import running_services
from tests.kit.served_book import TOKEN
from tests.unit.service.test_http_tokens import House

MIB = 1 << 20
SECRET = "https://bucket.example/in.dat?X-Amz-Signature=5ecre7"


class Serving:
    """A service whose site agent at lyon is to fetch one file."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.content = os.urandom(3 * MIB + 17)
        self.file = folder / "in.dat"
        self.file.write_bytes(self.content)
        self.folder, self.store = folder, FaultyStore()
        self.use(Stores({"file://": self.store}, settings=StoreSettings(concurrency=2)), f"file://{self.file}")

    def use(self, stores: FindsStores, locator: str) -> None:
        """Let the file come from other stores."""
        folder, house = self.folder, self.house
        self.transfers = Transfers(
            stores,
            report=lambda _: None,
            caches=lambda _: SiteCache(),
            outputs=lambda *_: (),
            spool=str(folder / "spool"),
        )
        house.jobs.transfers = self.transfers
        house.jobs.ordered["fetch.1.0"] = FetchFile(site="lyon", key="fetch.1.0", locator=locator, name="ab/abc")

    def get(
        self, path: str = "/agent/transfers/fetch.1.0", *, token: str = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body."""
        connection = self.house.connect()
        try:
            shown = token or self.house.tokens.for_site_agent("lyon")
            connection.request("GET", path, headers={"Authorization": f"Bearer {shown}", **headers})
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
        finally:
            connection.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with running_services(tmp_path / "book") as (services, jobs):
        house = House(services, jobs, tmp_path)
        made = Serving(house, tmp_path)
        try:
            yield made
        finally:
            made.transfers.stop()
            house.stop()


def code_of(body: bytes) -> str:
    found: dict[str, Any] = msgspec.json.decode(body)
    return str(found["error"]["code"])


def test_an_ordered_file_is_sent_whole(serving: Serving) -> None:
    status, headers, body = serving.get()
    assert (status, body) == (200, serving.content)
    assert headers["content-length"] == str(len(serving.content))
    found = serving.store.stat(f"file://{serving.file}")
    assert found is not None
    assert headers["pilotage-version"] == found.version


def test_a_range_is_sent_alone(serving: Serving) -> None:
    status, headers, body = serving.get(Range=f"bytes={MIB + 5}-")
    assert (status, body) == (206, serving.content[MIB + 5 :])
    size = len(serving.content)
    assert headers["content-range"] == f"bytes {MIB + 5}-{size - 1}/{size}"
    status, _, body = serving.get(Range="bytes=3-9")
    assert (status, body) == (206, serving.content[3:10])


def test_a_range_beyond_the_end_is_refused(serving: Serving) -> None:
    status, _, body = serving.get(Range=f"bytes={len(serving.content)}-")
    assert (status, code_of(body)) == (416, "not_a_range")


def test_content_of_the_service_is_sent_in_ranges_with_its_checksum(serving: Serving, tmp_path: Path) -> None:
    content, sha256 = FolderContent(tmp_path / "state"), hashlib.sha256(serving.content).hexdigest()
    KeptContent(content, user="ann").put(str(serving.file), f"store:{sha256}")
    serving.use(StoreRegistry([], own={"store": lambda user: KeptContent(content, user=user)}), f"store:{sha256}")
    status, headers, body = serving.get(Range=f"bytes={2 * MIB}-")
    assert (status, body) == (206, serving.content[2 * MIB :])
    assert headers["pilotage-sha256"] == headers["pilotage-version"] == sha256


def test_an_empty_file_is_sent(serving: Serving) -> None:
    serving.file.write_bytes(b"")
    assert serving.get()[::2] == (200, b"")


def test_a_checksum_that_the_store_knows_is_told(serving: Serving) -> None:
    serving.store.known[f"file://{serving.file}"] = hashlib.sha256(serving.content).hexdigest()
    assert serving.get()[1]["pilotage-sha256"] == hashlib.sha256(serving.content).hexdigest()


def test_only_the_agent_of_the_site_gets_it_and_only_while_it_is_ordered(serving: Serving) -> None:
    tokens = serving.house.tokens
    status, _, body = serving.get(token=tokens.for_site_agent("paris"))
    assert (status, code_of(body)) == (404, "unknown_content")
    assert serving.get(token=tokens.for_pilot("lyon"))[0] == 403
    assert serving.get("/agent/transfers/fetch.9.9")[0] == 404
    assert serving.get(token=TOKEN)[0] == 200  # the local user may act for any site
    serving.house.jobs.ordered.clear()
    assert serving.get()[0] == 404


@pytest.mark.parametrize(
    "refusal, status, code",
    [
        (AccessDenied("403"), 424, "access_denied"),
        (CredentialExpired("expired"), 424, "credential_expired"),
        (StoreUnreachable("down"), 503, "store_unreachable"),
    ],
)
def test_a_refusal_of_the_store_is_told_by_its_name(
    serving: Serving, refusal: AccessDenied, status: int, code: str
) -> None:
    serving.store.refusals.append(refusal)
    answered, _, body = serving.get()
    assert (answered, code_of(body)) == (status, code)


def test_a_missing_file_is_not_in_its_store(serving: Serving) -> None:
    serving.file.unlink()
    status, _, body = serving.get()
    assert (status, code_of(body)) == (404, "not_in_store")


def test_a_transfer_that_breaks_off_is_seen_by_its_missing_end(serving: Serving) -> None:
    serving.store.faults += [cut(after_bytes=MIB + 1, error=StoreUnreachable("broke"))]
    with pytest.raises(Exception, match="IncompleteRead"):
        serving.get()
    status, _, body = serving.get(Range=f"bytes={MIB + 1}-")
    assert (status, body) == (206, serving.content[MIB + 1 :])


def test_a_presigned_url_is_given_and_nowhere_else_to_be_found(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    serving.store.presigned_url = SECRET
    status, headers, body = serving.get()
    assert (status, headers["location"], body) == (307, SECRET, b"")
    assert headers["cache-control"] == "no-store"
    assert headers["pilotage-version"]
    assert "5ecre7" not in caplog.text
    assert "5ecre7" not in repr(serving.transfers.under_way()) + repr(serving.transfers.stores())
    status, _, body = serving.get("/agent/transfers/fetch.1.0?direct=no")
    assert (status, body) == (200, serving.content)


class Downloaded(msgspec.Struct, frozen=True):
    """What the download of a site agent got."""

    content: bytes
    facts: FileFacts
    direct: bool


def downloaded(serving: Serving, *, offset: int = 0, direct: bool = True) -> Downloaded:
    """What a site agent's own download gets."""
    host, port = serving.house.bound.getsockname()[:2]
    tokens = serving.house.tokens
    downloads = Downloads(f"http://{host}:{port}", token=lambda: tokens.for_site_agent("lyon"))
    opened = downloads.open("/agent/transfers/fetch.1.0", offset=offset, direct=direct)
    content, buffer = bytearray(), bytearray(MIB)
    while count := opened.read_into(memoryview(buffer)):
        content += buffer[:count]
    opened.close()
    return Downloaded(bytes(content), opened.facts, opened.direct)


def test_a_site_agent_downloads_it_and_goes_on_from_a_byte(serving: Serving) -> None:
    whole, rest = downloaded(serving), downloaded(serving, offset=MIB + 1)
    assert (whole.content, rest.content) == (serving.content, serving.content[MIB + 1 :])
    assert (rest.facts.start, rest.facts.size_bytes) == (MIB + 1, len(serving.content))
    assert whole.facts.version == rest.facts.version != ""


def test_a_site_agent_fetches_it_straight_from_s3(serving: Serving, s3_server: S3Server, tmp_path: Path) -> None:
    with bucket_place(s3_server, tmp_path) as place:
        place.write("in.dat", serving.content)
        settings = msgspec.structs.replace(place.settings, name="bucket", url=place.base)
        serving.use(StoreRegistry([settings]), place.at("in.dat"))
        straight, streamed = downloaded(serving, offset=5), downloaded(serving, direct=False)
    assert (straight.content, straight.direct) == (serving.content[5:], True)
    assert (streamed.content, streamed.direct) == (serving.content, False)
    assert straight.facts.version == streamed.facts.version != ""


def test_a_receiver_that_leaves_ends_the_transfer(serving: Serving) -> None:
    assert serving.get(Range="bytes=0-9")[2] == serving.content[:10]
    until = threading.Event()
    while serving.transfers.under_way():
        until.wait(0.01)
    (store,) = serving.transfers.stores()
    assert store.bytes < len(serving.content)
    assert store.failures == {}


def test_what_runs_is_shown_and_counted_by_store(serving: Serving) -> None:
    stall = Stall()
    serving.store.faults += [stall]
    asking = threading.Thread(target=serving.get)
    asking.start()
    assert stall.reached.wait(20)
    (shown,) = msgspec.json.decode(serving.get("/v1/transfers", token=TOKEN)[2])["transfers"]
    assert (shown["kind"], shown["site"], shown["store"]) == ("send", "lyon", "file://")
    assert shown["file"] == f"file://{serving.file}"
    assert shown["total_bytes"] == len(serving.content)
    (store,) = msgspec.json.decode(serving.get("/v1/stores", token=TOKEN)[2])["stores"]
    assert (store["store"], store["under_way"]) == ("file://", 1)
    stall.over.set()
    asking.join(20)
    (store,) = msgspec.json.decode(serving.get("/v1/stores", token=TOKEN)[2])["stores"]
    assert (store["files"], store["bytes"], store["failures"]) == (1, len(serving.content), {})
