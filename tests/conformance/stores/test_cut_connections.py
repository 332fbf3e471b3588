"""What every store behind a network does when the network breaks: it says so, and the work goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import FileChanged, StoreError, StoreUnreachable
from tests.conformance.stores.places import Place, bucket_place, found, place_in
from tests.engines.s3 import S3Server
from tests.engines.sshd import SshServer
from tests.engines.webdav import WebdavServer
from tests.kit.wire import Wire

SILENT_SECONDS = 1.0


class WiredPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place, and the wire to it."""

    place: Place
    wire: Wire


@pytest.fixture(params=["sftp", "s3", "webdav"])
def wired(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WiredPlace]:
    """A store at the other end of a wire."""
    with ExitStack() as stack:
        match request.param:
            case "sftp":
                server: SshServer = request.getfixturevalue("ssh_server")
                wire = stack.enter_context(Wire(server.port))
                folder = tmp_path / "there"
                known, config = tmp_path / "known_hosts", tmp_path / "ssh_config"
                known.write_text(f"wired {(server.folder / 'host.pub').read_text()}")
                config.write_text(
                    f"IdentityFile {server.folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {known}\n"
                    "GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nHostKeyAlias wired\n"
                )
                settings = StoreSettings(ssh_config=str(config))
                base = f"sftp://{server.user}@127.0.0.1:{wire.port}{folder}"
                place = stack.enter_context(place_in(folder, base, settings))
            case "s3":
                s3: S3Server = request.getfixturevalue("s3_server")
                wire = stack.enter_context(Wire(s3.port))
                behind = stack.enter_context(bucket_place(s3, tmp_path))
                settings = msgspec.structs.replace(behind.settings, endpoint=f"http://127.0.0.1:{wire.port}")
                store = stack.enter_context(found(behind.base, settings))
                place = msgspec.structs.replace(behind, settings=settings, store=store)
            case _:
                dav: WebdavServer = request.getfixturevalue("webdav_server")
                wire = stack.enter_context(Wire(dav.port))
                folder = dav.folder / tmp_path.name
                base = f"http://127.0.0.1:{wire.port}/{tmp_path.name}"
                place = stack.enter_context(place_in(folder, base, StoreSettings()))
        yield WiredPlace(place=place, wire=wire)


def test_a_read_that_was_cut_goes_on_where_it_stopped(wired: WiredPlace) -> None:
    place, content = wired.place, os.urandom(24 << 20)
    place.write("a.dat", content)
    before = place.store.stat(place.at("a.dat"))
    assert before is not None
    wired.wire.cut_after(9 << 20)
    pieces: list[bytes] = []
    with pytest.raises(StoreUnreachable) as cut:
        pieces.extend(place.store.read(place.at("a.dat"), version=before.version))
    received = b"".join(pieces)
    assert (cut.value.reason, cut.value.retryable) == ("store-unreachable", True)
    assert 0 < len(received) < len(content)
    wired.wire.mend()
    received += b"".join(place.store.read(place.at("a.dat"), offset=len(received), version=before.version))
    assert hashlib.sha256(received).digest() == hashlib.sha256(content).digest()


def test_a_read_does_not_go_on_with_another_file(wired: WiredPlace) -> None:
    place = wired.place
    place.write("a.dat", bytes(24 << 20))
    before = place.store.stat(place.at("a.dat"))
    assert before is not None
    wired.wire.cut_after(9 << 20)
    with pytest.raises(StoreUnreachable):
        list(place.store.read(place.at("a.dat"), version=before.version))
    place.write("a.dat", os.urandom((24 << 20) + 1))
    wired.wire.mend()
    with pytest.raises(FileChanged):
        list(place.store.read(place.at("a.dat"), offset=1 << 20, version=before.version))


def test_a_put_that_was_cut_shows_nothing_and_can_be_done_again(wired: WiredPlace, source: Path) -> None:
    place = wired.place
    source.write_bytes(os.urandom(30 << 20))
    place.store.list(place.base)
    wired.wire.cut_after(16 << 20)
    told: list[int] = []
    with pytest.raises(StoreUnreachable):
        place.store.put(str(source), place.at("a.dat"), sent=told.append)
    wired.wire.mend()
    assert place.store.stat(place.at("a.dat")) is None
    assert list(place.store.list(place.base)) == []
    told.clear()
    place.store.put(str(source), place.at("a.dat"), sent=told.append)
    assert sum(told) == 30 << 20
    assert place.store.checksum(place.at("a.dat")) == hashlib.sha256(source.read_bytes()).hexdigest()
    assert [each.locator for each in place.store.list(place.base)] == [place.at("a.dat")]
    if place.base.startswith("sftp:"):
        assert told[0] > 4 << 20, "it began again from the start"
        assert list(place.content()) == ["a.dat"]


CALLS: dict[str, Callable[[Place, Path], object]] = {
    "stat": lambda place, _: place.store.stat(place.at("a.dat")),
    "read": lambda place, _: list(place.store.read(place.at("a.dat"))),
    "list": lambda place, _: list(place.store.list(place.base)),
    "put": lambda place, source: place.store.put(str(source), place.at("a.dat")),
    "delete": lambda place, _: place.store.delete(place.at("a.dat")),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_store_that_cannot_be_reached_is_not_one_without_the_file(wired: WiredPlace, source: Path, name: str) -> None:
    wired.wire.cut()
    with pytest.raises(StoreUnreachable):
        CALLS[name](wired.place, source)
    wired.wire.mend()
    assert list(wired.place.store.list(wired.place.base)) == []


def test_a_store_that_falls_silent_is_given_up(wired: WiredPlace) -> None:
    settings = msgspec.structs.replace(wired.place.settings, timeout_seconds=SILENT_SECONDS)
    wired.place.write("a.dat", bytes(24 << 20))
    with found(wired.place.base, settings) as store:
        reading = store.read(wired.place.at("a.dat"))
        assert next(reading)
        wired.wire.hold()
        with pytest.raises(StoreUnreachable):
            list(reading)
        with pytest.raises(StoreError):
            store.stat(wired.place.at("a.dat"))
        wired.wire.mend()
        assert store.stat(wired.place.at("a.dat")) is not None
