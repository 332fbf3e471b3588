"""Tokens are in files that only their owner reads, and nowhere else: not in an argv, a log, the book or a batch script.

A relay through a folder has them in the messages that are under way, which nobody else may read, and in none that is over.
"""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from pilotage.model.settings.stores import StoreSettings
from tests.acceptance.test_site_agent import SITE, far
from tests.engines.s3 import S3Server
from tests.kit.pilots import wait_until
from tests.kit.site_service import SiteService
from tests.kit.web_proxy import WebProxy

PACKAGES = 6
SECONDS_MAX = 90.0
# Each package looks around while service, site agent, pilots and other packages run, and keeps its own token for the test.
JOB = """\
pilotage: 1
job: looks
stages:
  - each: {n: 1..%d}
    shell: |
      cat /proc/[0-9]*/cmdline > %s/argv-{n} 2>/dev/null
      cat "$PILOTAGE_TOKEN_FILE" > %s/package-{n}
      echo "$PILOTAGE_TOKEN$PILOTAGE_TOKEN_FILE" > out-{n}.txt
    outputs: ["out-{n}.txt"]
"""


def secrets_of(root: Path, kept: Path) -> dict[str, bytes]:
    """The signatures of all tokens, by whose they are: whoever has one has the token."""
    files = {
        "site agent": root / "token",
        "pilots": root / "site" / "tokens" / SITE,
        **{each.name: each for each in kept.glob("package-*")},
    }
    found = {name: file.read_bytes().strip() for name, file in files.items()}
    assert all(text.count(b".") == 2 for text in found.values()), found
    local = (root / "ours" / "home" / ".pilotage" / "token").read_bytes().strip()
    return {**{name: text.rsplit(b".", 1)[1] for name, text in found.items()}, "local": local}


def files_with(root: Path, secret: bytes, *, under_way: bool) -> list[Path]:
    """The files below a folder that hold a text, and that others than their owner may read or that are no token's own."""
    own = {"token", f"token-{SITE}", SITE}  # the files that tokens are kept in
    relay = root / "site" / "relay"
    found = []
    for file in root.rglob("*"):
        try:
            told, mode = file.is_file() and secret in file.read_bytes(), file.stat().st_mode
        except FileNotFoundError:
            continue  # a message that was taken meanwhile
        may = file.name in own or (under_way and file.is_relative_to(relay))
        if told and (not may or stat.S_IMODE(mode) & 0o077):
            found.append(file)
    return found


def pilots_of(service: SiteService) -> int:
    """How many pilots are queued or live."""
    (site,) = json.loads(service.program("site", "list", "--json"))["sites"]
    return int(site["pilots_live"]) + int(site["pilots_queued"])


@pytest.mark.parametrize("way", ["--listen=127.0.0.1:0", "--spool"])
def test_a_job_through_a_site_agent_over_tls_tells_no_token(tmp_path: Path, way: str) -> None:
    kept, root = tmp_path / "kept", tmp_path / "root"
    kept.mkdir()
    root.mkdir()
    with far(root, way, secure=True) as site:
        site.agent.start()
        home = site.service.folder
        (home / "pilotage.yaml").write_text(JOB % (PACKAGES, kept, kept))
        site.service.program("submit")
        outputs = [home / f"out-{number}.txt" for number in range(1, PACKAGES + 1)]
        wait_until(lambda: all(file.exists() for file in outputs), SECONDS_MAX)
        secrets = secrets_of(root, kept)
        assert len(secrets) == PACKAGES + 3
        seen = b"".join(file.read_bytes() for file in kept.glob("argv-*"))
        assert b"agent.pyz" in seen  # it is argv that was looked at
        assert b"tests.kit.site_service" in seen
        for whose, secret in secrets.items():
            assert secret not in seen, f"the token of {whose} is in an argv"
            assert files_with(root, secret, under_way=True) == [], f"the token of {whose} is told"
        if (root / "site" / "relay").exists():
            assert stat.S_IMODE((root / "site" / "relay").stat().st_mode) == 0o700
        wait_until(lambda: not pilots_of(site.service), SECONDS_MAX)  # those without work end
        assert site.agent.stop() == 0
        site.service.stop()  # what it writes at its end is looked at, too
        for whose, secret in secrets.items():
            assert files_with(root, secret, under_way=False) == [], f"the token of {whose} is told"


LOOK_SECONDS = 0.01
STORED = """\
pilotage: 1
job: stored
stages:
  - each: {{n: 1..{count}}}
    shell: cat in.dat > out-{{n}}.txt
    inputs: [{{name: in.dat, locator: "s3://{bucket}/{{n}}.dat"}}]
    outputs: ["out-{{n}}.txt"]
"""


@contextmanager
def process_list() -> Iterator[list[bytes]]:
    """What every process of this computer was started with, as it comes and goes; all of it when the block ends."""
    seen: set[bytes] = set()
    over, told = threading.Event(), list[bytes]()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            for folder in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    with suppress(OSError):
                        seen.add((folder / name).read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
        told.extend(seen)


def test_an_address_that_opens_a_file_of_a_store_is_told_to_nobody_but_the_agent_that_fetches_it(
    s3_server: S3Server, tmp_path: Path
) -> None:
    bucket, root = f"bucket-{uuid4().hex}", tmp_path / "root"
    s3_server.bucket(bucket)
    for number in range(1, PACKAGES + 1):
        s3_server.write(bucket, f"{number}.dat", b"%d" % number * 1_000_000)
    root.mkdir()
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = AKIA\naws_secret_access_key = geheim\n")
    with WebProxy(s3_server.port) as proxy:
        store = StoreSettings(
            name="data",
            url=f"s3://{bucket}",
            endpoint=proxy.url,
            region="us-east-1",
            credentials_file=str(tmp_path / "credentials"),
        )
        with process_list() as started, far(root, cache=str(root / "cache"), stores=[store]) as site:
            site.agent.start()
            home = site.service.folder
            (home / "pilotage.yaml").write_text(STORED.format(count=PACKAGES, bucket=bucket))
            site.service.program("submit")
            outputs = [home / f"out-{number}.txt" for number in range(1, PACKAGES + 1)]
            wait_until(lambda: all(file.exists() for file in outputs), SECONDS_MAX)
            for words in (("status",), ("files", "list"), ("query", "--events", "position>0")):
                assert "X-Amz" not in site.service.program(*words)
            assert site.agent.stop() == 0
            site.service.stop()
        asked = [parse_qs(urlsplit(each.partition(" ")[2]).query) for each in proxy.asked]
    presigned = [query for query in asked if "X-Amz-Signature" in query]
    assert len(presigned) >= PACKAGES, "the agent fetched the files itself"
    assert {int(query["X-Amz-Expires"][0]) for query in presigned} == {900}, "as long as the transfer may take"
    assert b"agent.pyz" in b"".join(started)  # it is argv that was looked at
    secrets = {query["X-Amz-Signature"][0].encode() for query in presigned}
    assert not any(secret in each for secret in secrets for each in started), "an address is in an argv or environment"
    assert files_with(root, b"X-Amz-Signature", under_way=False) == [], "an address is in the book, a log or a file"
    assert sorted(file.read_bytes()[:1] for file in outputs) == [b"%d" % n for n in range(1, PACKAGES + 1)]
