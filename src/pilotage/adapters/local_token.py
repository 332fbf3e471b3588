"""The token of the local user: random, in a file that nobody else can read, made once by whoever comes first."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from pathlib import Path

from pilotage.adapters.closed_folders import make_closed
from pilotage.model.errors import PilotageError

TOKEN_FILE = "token"
TOKEN_BYTES = 32
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]{16,1024}")


class TokenError(PilotageError):
    """The local token cannot be used. The message says whether to mend the file's mode or to remove the file."""


def token_file(folder: Path) -> Path:
    """Where the token lies in the state folder."""
    return folder / TOKEN_FILE


def ensure_token(folder: Path) -> str:
    """The token of the state folder; it is made, and the folder too, where there is none yet.

    Two processes that start together agree: the file appears complete, under its name, exactly once.
    """
    file = token_file(folder)
    try:
        if not file.exists():
            make_closed(folder)
            _make(file)
    except OSError as error:
        raise TokenError(
            "cannot make the token of the local user",
            subject=str(file),
            got=error.strerror or str(error),
            next_step="choose another folder for the book, or set PILOTAGE_TOKEN_FILE",
        ) from error
    return read_token(folder)


def read_token(folder: Path) -> str:
    """The token of the state folder; refused when anybody else could have read or written it."""
    file = token_file(folder)
    try:
        # Not waiting: a pipe under this name must not hang the program.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise TokenError(
            "there is no token here",
            subject=str(file),
            next_step="start `pilotage serve` in this project first, or set PILOTAGE_TOKEN or PILOTAGE_TOKEN_FILE",
        ) from error
    except OSError as error:
        raise TokenError("cannot read the token", subject=str(file), got=error.strerror or str(error)) from error
    try:
        _refuse_shared(file, os.fstat(descriptor))
        content = os.read(descriptor, 2048)
    finally:
        os.close(descriptor)
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise TokenError(
            "this file holds no token",
            subject=str(file),
            expected="one line of 16 or more letters and digits",
            got=f"{len(content)} bytes" if content else "an empty file",
            next_step=f"remove it and a new one is made: rm {file}",
        )
    return token.decode("ascii")


def _refuse_shared(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenError("the token must be a plain file", subject=str(file), next_step=f"remove it: rm -r {file}")
    if status.st_uid != os.geteuid():
        raise TokenError(
            "the token belongs to another user",
            subject=str(file),
            expected=f"user id {os.geteuid()}",
            got=str(status.st_uid),
            next_step="choose another folder for the book, or set PILOTAGE_TOKEN_FILE",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise TokenError(
            "others may read or write the token",
            subject=str(file),
            expected="mode 600",
            got=f"{mode:o}",
            next_step=f"if nobody has read it: chmod 600 {file}; otherwise remove it and a new one is made",
        )


def _make(file: Path) -> None:
    """Write a new token beside its place, then link it there: a link, unlike a rename, never replaces another's file."""
    draft = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            stream.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            return  # another process was first: its token is ours
        except OSError:
            _rename_once(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _rename_once(draft: Path, file: Path) -> None:
    """The same where the file system knows no hard links: whoever has the folder's lock looks, and renames."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not file.exists():
            draft.rename(file)
    finally:
        os.close(folder)  # and the lock with it
