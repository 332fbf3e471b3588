"""A credential that has expired holds the packages that need it, which says so; it goes on when the credential is renewed."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from uuid import uuid4

import pytest

from tests.engines.s3 import S3Server
from tests.kit.real_runs import Place, place_in
from tests.kit.web_proxy import Answer, WebProxy, error

SETTINGS = """
[stores.data]
url = "s3://{bucket}"
endpoint = "{url}"
region = "us-east-1"
credentials_file = "{credentials}"
"""
DOCUMENT = """
pilotage: 1
job: renewed
stages:
  - name: reads
    shell: "cat in.dat > read"
    inputs: [{{name: in.dat, locator: "s3://{bucket}/in.dat"}}]
    outputs: [read]
  - name: stores
    shell: "echo made > made"
    outputs: [{{name: made, locator: "s3://{bucket}/made"}}]
"""


class Expiring:
    """A bucket behind a server that knows which session tokens are over."""

    def __init__(self, server: S3Server, proxy: WebProxy, credentials: Path) -> None:
        self.server, self.url, self._credentials = server, proxy.url, credentials
        self.bucket = f"bucket-{uuid4().hex}"
        server.bucket(self.bucket)
        server.write(self.bucket, "in.dat", b"data")
        proxy.rule = self._answer

    def use(self, token: str) -> None:
        """Write another credential into its source."""
        words = f"aws_access_key_id = AKIA\naws_secret_access_key = secret\naws_session_token = {token}\n"
        self._credentials.write_text(f"[default]\n{words}")

    def settings(self) -> str:
        return SETTINGS.format(bucket=self.bucket, url=self.url, credentials=self._credentials)

    @staticmethod
    def _answer(request: BaseHTTPRequestHandler) -> Answer | None:
        if request.headers.get("x-amz-security-token") == "old":
            return error("ExpiredToken", "The provided token has expired.", status=400)
        return None


@pytest.fixture
def expiring(s3_server: S3Server, tmp_path: Path) -> Iterator[Expiring]:
    with WebProxy(s3_server.port) as proxy:
        yield Expiring(s3_server, proxy, tmp_path / "credentials")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "job").mkdir()
    with place_in(tmp_path / "job") as made:
        yield made


def test_packages_are_held_for_a_credential_and_go_on_when_it_is_renewed(expiring: Expiring, place: Place) -> None:
    expiring.use("old")
    (place.folder / "pilotage.toml").write_text(expiring.settings())
    place.document(DOCUMENT.format(bucket=expiring.bucket))
    place.run("serve", "--background", "--port", "0", "--slots", "2")
    job = place.run("submit").stdout.strip()
    watched = place.run("watch", job, code=1)
    assert "credential-expired" in watched.stdout + watched.stderr
    status = place.run("status", job).stdout
    assert "credential-expired" in status
    for package in ("1.1.1", "2.1.1"):
        explained = place.run("explain", f"{job}/{package}").stdout
        assert "credential-expired" in explained, explained
        assert "not-in-store" not in explained
        assert f"pilotage release {job}/{package}" in explained or "release it" in explained
    assert "x-amz" not in (status + place.log()).lower()
    expiring.use("good")
    for package in ("1.1.1", "2.1.1"):
        place.run("release", f"{job}/{package}")
    place.run("watch", job)
    assert (place.folder / "read").read_bytes() == b"data"
    assert expiring.server.content(expiring.bucket)["made"] == b"made\n"
