"""The engines as fixtures: most for each worker that asks; a mail server for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.capsule import CannotIsolate
from tests.engines.errors import EngineError
from tests.engines.gridengine import GridEngine
from tests.engines.podman import CannotRun, Podman
from tests.engines.postgres import PostgresServer
from tests.engines.s3 import S3Server
from tests.engines.slurm import SlurmCluster
from tests.engines.smtp import MailServer
from tests.engines.sshd import SshServer
from tests.engines.webdav import WebdavServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL server. A test may stop and restart it; the next one finds it running."""
    try:
        server = PostgresServer()
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh, empty database."""
    postgres_server.ensure_running()
    url = postgres_server.database()
    yield url
    postgres_server.ensure_running()
    postgres_server.drop(url)


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    """A real mail server; every answer that was planned must have been given in the end."""
    with MailServer() as server:
        yield server
    assert server.planned == (), "answers that no message asked for"


@pytest.fixture(scope="session")
def ssh_server() -> Iterator[SshServer]:
    """A real SSH server on loopback, whose folders can be mounted."""
    try:
        server = SshServer()
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server of S3 on loopback, which accepts every credential."""
    try:
        server = S3Server()
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@pytest.fixture(scope="session")
def webdav_server() -> Iterator[WebdavServer]:
    """A WebDAV server on loopback, open to everybody."""
    try:
        server = WebdavServer()
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with server:
        yield server


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """A real podman with an image of busybox; skips where the system does not let it run anything."""
    try:
        engine = Podman()
    except CannotRun as error:
        pytest.skip(f"privilege: {error}")
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with engine:
        yield engine


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A real Slurm cluster of two nodes; skips where the system does not let us set processes apart."""
    try:
        cluster = SlurmCluster("t", nodes=2, cpus=8)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def grid_engine() -> Iterator[GridEngine]:
    """A real cell of Grid Engine with one host; skips where the system does not let us set processes apart."""
    try:
        cell = GridEngine(slots=8)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    except EngineError as error:
        pytest.fail(str(error), pytrace=False)
    with cell:
        yield cell
