"""Tokens are in files that only their owner reads, and nowhere else: not in an argv, a log, the book or a batch script.

A relay through a folder has them in the messages that are under way, which nobody else may read, and in none that is over.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.acceptance.test_site_agent import SITE, far
from tests.kit.pilots import wait_until
from tests.kit.site_service import SiteService

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
