"""The signing keys of a service's tokens: made once, in private files of the state folder's `keys`.

Removing a key invalidates every token that it signed; the next start makes another.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.adapters.closed_folders import make_closed
from pilotage.model.errors import PilotageError, part

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEYS_FOLDER = "keys"
TOKEN_KEY_FILE = "tokens.pem"
PACKAGE_KEY_FILE = "packages.key"
PACKAGE_KEY_BYTES = 32
_BYTES_MAX = 4096


class KeyFault(PilotageError):
    """A key cannot be made or used. The message says which file, and what to do."""


class StoredKeys:
    """Keys in a state folder, read or made at the first use: most services sign nothing."""

    def __init__(self, state: Path) -> None:
        self._folder = state / KEYS_FOLDER
        self._guard = threading.Lock()
        self._signing: Ed25519PrivateKey | None = None

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A JWT with these claims, signed with Ed25519."""
        with part(purpose="to sign tokens"):
            import jwt
        return jwt.encode(dict(claims), self._key(), algorithm="EdDSA")

    def verify(self, token: str, *, issuer: str, audience: str) -> Mapping[str, Any]:
        """The claims of a JWT that this service signed, expired or not; raises `ValueError` for any other."""
        if not (self._folder / TOKEN_KEY_FILE).exists():
            raise ValueError("this service has not signed any token")
        with part(purpose="to read tokens"):
            import jwt
        wanted = ["exp", "iat", "sub", "iss", "aud"]
        try:
            # The caller checks the times, since it knows how far clocks may differ.
            options: Any = {"require": wanted, "verify_exp": False, "verify_nbf": False, "verify_iat": False}
            key = self._key().public_key()
            return jwt.decode(token, key, algorithms=["EdDSA"], issuer=issuer, audience=audience, options=options)
        except jwt.InvalidTokenError as error:
            raise ValueError(str(error)) from error

    def package_key(self) -> bytes:
        """The key of the MACs in packages' tokens."""
        return bytes.fromhex(
            self._content(PACKAGE_KEY_FILE, lambda: secrets.token_hex(PACKAGE_KEY_BYTES).encode()).decode("ascii")
        )

    def _key(self) -> Ed25519PrivateKey:
        with self._guard:
            if self._signing is None:
                self._signing = self._read_signing()
            return self._signing

    def _read_signing(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_pem_private_key,
        )

        def make() -> bytes:
            return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

        try:
            key = load_pem_private_key(self._content(TOKEN_KEY_FILE, make), password=None)
        except ValueError as error:
            raise self._no_key(TOKEN_KEY_FILE, str(error)) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise self._no_key(TOKEN_KEY_FILE, type(key).__name__)
        return key

    def _no_key(self, name: str, got: str) -> KeyFault:
        file = self._folder / name
        return KeyFault(
            "this file does not contain a valid key",
            subject=str(file),
            got=got,
            next_step=f"remove it and another is made; every token of the old key becomes invalid: rm {file}",
        )

    def _content(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Read a file; if it does not exist, make it, atomically and only once among all processes."""
        file = self._folder / name
        try:
            if not file.exists():
                make_closed(self._folder)
                _make(file, make())
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                _refuse_shared(file, os.fstat(descriptor))
                return os.read(descriptor, _BYTES_MAX).strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise KeyFault("cannot use this key", subject=str(file), got=error.strerror or str(error)) from error


def _refuse_shared(file: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
        raise KeyFault(
            "other users could have read or written this key",
            subject=str(file),
            expected="a plain file of your own, mode 600",
            got=f"mode {mode:o}, user id {status.st_uid}",
            next_step=f"remove it and another is made; every token of the old key becomes invalid: rm {file}",
        )


def _make(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            return  # another process was first: use its key
        except OSError:  # no hard links on this file system
            if not file.exists():
                draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)


# The local user's token: random, in a private file, made once by the first process.

TOKEN_FILE = "token"
TOKEN_BYTES = 32
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/=-]{16,1024}")


class TokenError(PilotageError):
    """The local token cannot be used. The message says whether to correct the file's mode or to remove the file."""


def token_file(folder: Path) -> Path:
    """The path of the token in the state folder."""
    return folder / TOKEN_FILE


def ensure_token(folder: Path) -> str:
    """The token of the state folder; makes it, and the folder, if needed.

    Two processes that start together agree: the file appears complete, and only once.
    """
    file = token_file(folder)
    try:
        if not file.exists():
            make_closed(folder)
            _make_token(file)
    except OSError as error:
        raise TokenError(
            "cannot make the token of the local user",
            subject=str(file),
            got=error.strerror or str(error),
            next_step="choose another folder for the book, or set PILOTAGE_TOKEN_FILE",
        ) from error
    return read_token(folder)


def read_token(folder: Path) -> str:
    """The token of the state folder; refused if other users could have read or written it."""
    file = token_file(folder)
    try:
        # Non-blocking: a pipe of this name must not hang the program.
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
        _refuse_shared_token(file, os.fstat(descriptor))
        content = os.read(descriptor, 2048)
    finally:
        os.close(descriptor)
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise TokenError(
            "this file does not contain a token",
            subject=str(file),
            expected="one line of 16 or more letters and digits",
            got=f"{len(content)} bytes" if content else "an empty file",
            next_step=f"remove it and a new one is made: rm {file}",
        )
    return token.decode("ascii")


def _refuse_shared_token(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenError("the token must be a regular file", subject=str(file), next_step=f"remove it: rm -r {file}")
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
            "other users may read or write the token",
            subject=str(file),
            expected="mode 600",
            got=f"{mode:o}",
            next_step=f"if no other user has read it: chmod 600 {file}; otherwise remove it and a new one is made",
        )


def _make_token(file: Path) -> None:
    """Write a new token to a draft, then link it: unlike a rename, a link never replaces another process's file."""
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
            return  # another process was first: use its token
        except OSError:
            _rename_once(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _rename_once(draft: Path, file: Path) -> None:
    """The same without hard links: the process with the folder's lock checks, and renames."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not file.exists():
            draft.rename(file)
    finally:
        os.close(folder)  # releases the lock
