"""A session of SFTP with servers that are unlike OpenSSH, or no servers of SFTP at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pilotage.adapters.stores.sftp import store as sftp
from pilotage.adapters.stores.sftp.session import SftpSession, ssh_words
from pilotage.model.locators import parse_locator
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import StoreError, StoreUnreachable


@pytest.fixture
def spoken_by(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Stores start the odd server in place of ssh."""
    words = [sys.executable, str(root / "tests" / "kit" / "odd_sftp.py")]
    monkeypatch.setattr(sftp, "ssh_words", lambda **_: words)


@pytest.mark.usefixtures("spoken_by")
def test_short_answers_in_another_order_make_the_same_content(tmp_path: Path) -> None:
    content = os.urandom(400_001)
    (tmp_path / "a.dat").write_bytes(content)
    store = sftp.SftpStore(StoreSettings())
    try:
        assert b"".join(store.read(f"sftp://host{tmp_path}/a.dat")) == content
        assert b"".join(store.read(f"sftp://host{tmp_path}/a.dat", offset=399_990)) == content[399_990:]
    finally:
        store.close()


@pytest.mark.parametrize(
    "script, kind, told",
    [
        ("echo Welcome to the cluster; cat >/dev/null", StoreError, "must not print"),
        ("printf '\\0\\0\\0\\5\\2\\0\\0\\0\\1'; cat >/dev/null", StoreError, "older version"),
        ("exit 0", StoreUnreachable, "the connection ended"),
        ("echo 'ssh: connect to host x port 22: Connection refused' >&2; exit 255", StoreUnreachable, "refused"),
        ("echo 'subsystem request failed on channel 0' >&2; exit 255", StoreError, "no SFTP"),
    ],
)
def test_what_does_not_speak_sftp_is_told_apart(script: str, kind: type[StoreError], told: str) -> None:
    with pytest.raises(StoreError) as refused:
        SftpSession(["sh", "-c", script], timeout_seconds=20, subject="sftp://host")
    assert type(refused.value) is kind
    assert told in str(refused.value)


def test_a_computer_without_ssh_says_so() -> None:
    with pytest.raises(StoreError, match="cannot be started"):
        SftpSession(["/nowhere/ssh"], timeout_seconds=20, subject="sftp://host")


def test_ssh_never_asks_and_takes_no_name_for_an_option() -> None:
    words = ssh_words(host="host", user="me", port=22, identity_file="~/key", configuration="")
    assert words[-4:] == ["-s", "--", "host", "sftp"]
    assert "BatchMode=yes" in words
    assert str(Path("~/key").expanduser()) in words
    with pytest.raises(StoreError, match="not an address"):
        sftp.SftpStore(StoreSettings()).stat("sftp://-oProxyCommand=x/a")


@pytest.mark.parametrize(
    "locator, path",
    [
        ("sftp://host/data/a%20b", "/data/a b"),
        ("sftp://host/~/a%0Ab", "./a\nb"),
        ("sftp://host/~", "."),
        ("sftp://host/~me/a", "/~me/a"),
        ("sftp://host", "/"),
    ],
)
def test_the_home_of_the_account_is_a_tilde(locator: str, path: str) -> None:
    assert sftp._path(parse_locator(locator)) == path
