"""The certificate of a service that speaks TLS: loaded, looked after, and taken anew when its file is replaced."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pilotage.model.errors import PilotageError

log = logging.getLogger(__name__)

WARN_DAYS = 30.0
WARN_EVERY_SECONDS = 86_400.0


class CertificateError(PilotageError):
    """The certificate or its key cannot be used; the message says which file."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where a certificate and its key are, what clients believe instead of their own authorities, and when it ends."""

    certificate: str
    key: str
    ca_file: str = ""
    url: str = ""  # by which it is reached under a name of the certificate; none: those of this computer will do
    expires_at: Callable[[], float]  # seconds since 1970


class Certificate:
    """A context for connections to come; `look` at the files from time to time, in the thread of the loop."""

    def __init__(
        self, files: TlsFiles, *, clock: Callable[[], float] = time.time, warn: Callable[[str], None] = log.warning
    ) -> None:
        """Load it; raises `CertificateError`."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._files = files
        self._clock = clock
        self._warn = warn
        self._warned_at = 0.0
        self._refused: object = None
        self._loaded = self._state()
        try:
            self.context.load_cert_chain(files.certificate, files.key)
        except (OSError, ValueError) as error:
            raise CertificateError(
                f"the certificate cannot be used: {_plain(error)}",
                subject=f"{files.certificate}, {files.key}",
                next_step="make another with `pilotage tls init`, or mend service.tls_certificate and service.tls_key",
            ) from error

    def look(self) -> None:
        """Take a certificate that took the place of this one, and warn of one that ends soon."""
        state = self._state()
        if state not in (self._loaded, self._refused):
            try:
                # Tried apart first: half a new one would leave the context without any.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._files.certificate, self._files.key)
                self.context.load_cert_chain(self._files.certificate, self._files.key)
            except (OSError, ValueError) as error:
                self._refused = state  # one of the two may be on its way
                self._warn(f"the new certificate is not taken: {_plain(error)}: {self._files.certificate}")
            else:
                self._loaded, self._refused, self._warned_at = state, None, 0.0
        now = self._clock()
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            self._warn_of_end(now)

    def _warn_of_end(self, now: float) -> None:
        try:
            days = (self._files.expires_at() - now) / 86_400.0
        except (OSError, ValueError):
            return  # it is loaded, so it will do; only when it ends is not known
        if days < WARN_DAYS:
            told = "has expired" if days < 0 else f"expires in {int(days)} days"
            self._warn(f"the certificate {self._files.certificate} {told}; `pilotage tls init` makes a new one")

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self._files.certificate, self._files.key):
            try:
                seen = Path(path).stat()
                found.append((seen.st_ino, seen.st_mtime_ns, seen.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)


def _plain(error: BaseException) -> str:
    reason = getattr(error, "reason", "") or getattr(error, "strerror", "")
    return str(reason or error).lower().replace("_", " ")
