"""The local token: made once, for one user, and refused where others could have seen it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotage.adapters.settings import tokens as local_token
from pilotage.adapters.settings.tokens import TokenError, ensure_token, read_token, token_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".pilotage"


def test_a_token_is_made_once_and_only_its_owner_reads_it(folder: Path) -> None:
    token = ensure_token(folder)
    assert len(token) >= 43
    assert ensure_token(folder) == read_token(folder) == token
    assert stat.S_IMODE(token_file(folder).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [file.name for file in folder.iterdir()] == ["token"]


def test_two_folders_have_two_tokens(tmp_path: Path) -> None:
    assert ensure_token(tmp_path / "a") != ensure_token(tmp_path / "b")


def test_the_umask_does_not_open_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        ensure_token(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(token_file(folder).stat().st_mode) == 0o600


def test_processes_that_start_together_agree(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pilotage.adapters.settings.tokens import ensure_token\n"
        "print('ready', flush=True); sys.stdin.read(1); print(ensure_token(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(folder)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("!")
        process.stdin.flush()
    tokens = {process.communicate()[0].strip() for process in started}
    assert tokens == {read_token(folder)}
    assert [file.name for file in folder.iterdir()] == ["token"]


def test_who_comes_second_takes_the_first_ones_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    winner = "x" * 43

    def link_too_late(source: Path, target: Path) -> None:
        target.write_text(winner)
        target.chmod(0o600)
        link(source, target)

    monkeypatch.setattr(os, "link", link_too_late)
    assert ensure_token(folder) == winner
    assert [file.name for file in folder.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_token_that_others_could_touch_is_refused(folder: Path, mode: int) -> None:
    ensure_token(folder)
    token_file(folder).chmod(mode)
    for use in (read_token, ensure_token):
        with pytest.raises(
            TokenError, match=f"other users may read or write the token; expected mode 600, got {mode:o}"
        ):
            use(folder)


def test_a_token_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_token(folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TokenError, match="belongs to another user"):
        read_token(folder)


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"two words of some length", b"\xff" * 40, b"x" * 3000])
def test_a_file_without_a_token_is_refused_and_not_replaced(folder: Path, content: bytes) -> None:
    ensure_token(folder)
    token_file(folder).write_bytes(content)
    with pytest.raises(TokenError, match="does not contain a token") as refused:
        ensure_token(folder)
    assert "rm " in refused.value.next_step
    assert token_file(folder).read_bytes() == content


def test_a_missing_token_says_how_to_get_one(folder: Path) -> None:
    with pytest.raises(TokenError, match="there is no token here") as missing:
        read_token(folder)
    assert "pilotage serve" in missing.value.next_step


def test_a_pipe_or_a_folder_in_its_place_does_not_hang(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(token_file(folder), 0o600)
    with pytest.raises(TokenError, match="regular file"):
        ensure_token(folder)
    token_file(folder).unlink()
    token_file(folder).mkdir(mode=0o700)
    with pytest.raises(TokenError, match="regular file"):
        ensure_token(folder)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TokenError, match="cannot make the token"):
        ensure_token(tmp_path / "file" / ".pilotage")


def test_a_draft_is_not_left_behind_when_it_cannot_be_placed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(TokenError, match="Operation not permitted"):
        ensure_token(folder)
    assert list(folder.iterdir()) == []
    assert local_token.TOKEN_BYTES >= 32


def test_a_file_system_without_hard_links_has_one_token_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: ensure_token(tmp_path), range(16)))
    assert len(tokens) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
