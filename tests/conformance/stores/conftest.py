"""Every store that there is, as a fixture of the suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pilotage.model.settings.stores import StoreSettings
from tests.conformance.stores.places import Place, bucket_place, content_place, installed_shelf, place_in
from tests.engines.s3 import S3Server
from tests.engines.sshd import SshServer
from tests.engines.webdav import WebdavServer

KINDS = ("folder", "path", "installed", "sftp", "s3", "webdav")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store, and an empty folder in it."""
    with store_of(request.param, request, tmp_path) as made:
        yield made


@contextmanager
def store_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store of a kind, and an empty folder in it."""
    folder = tmp_path / "there"
    with ExitStack() as stack:
        match kind:
            case "folder":
                yield stack.enter_context(place_in(folder, f"file://{folder}", StoreSettings()))
            case "path":
                yield stack.enter_context(place_in(folder, str(folder), StoreSettings()))
            case "installed":
                stack.enter_context(installed_shelf(tmp_path / "packages", request.getfixturevalue("monkeypatch")))
                yield stack.enter_context(place_in(folder, f"shelf://upstairs{folder}", StoreSettings()))
            case "sftp":
                server: SshServer = request.getfixturevalue("ssh_server")
                base = f"sftp://{server.user}@{server.host}:{server.port}{folder}"
                yield stack.enter_context(place_in(folder, base, StoreSettings(ssh_config=str(server.configuration()))))
            case "s3":
                s3: S3Server = request.getfixturevalue("s3_server")
                yield stack.enter_context(bucket_place(s3, tmp_path))
            case "webdav":
                dav: WebdavServer = request.getfixturevalue("webdav_server")
                base = f"{dav.url}/{tmp_path.name}/there"
                yield stack.enter_context(place_in(dav.folder / tmp_path.name / "there", base, StoreSettings()))


@pytest.fixture(params=(*KINDS, "content"))
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store, also one where the content of a file gives its name: what needs names of one's own uses `place`."""
    if request.param == "content":
        with content_place(tmp_path / "there") as place:
            yield place
    else:
        with store_of(request.param, request, tmp_path) as place:
            yield place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small file of this computer."""
    file = tmp_path / "source"
    file.write_bytes(b"data")
    return file
