"""moto's S3 server in a process of its own, on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from html import unescape
from http.client import HTTPConnection
from types import TracebackType
from urllib.parse import quote

from tests.engines.errors import EngineError
from tests.engines.postgres import free_port

START_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.05
_PAUSE = threading.Event()  # never set
_ANYBODY = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_PROGRAM = "from moto.server import main; main()"


class S3Server:
    """A server of S3 that accepts every credential; it ends with `close`, and forgets everything."""

    def __init__(self) -> None:
        self.port = free_port()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the server
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "-H", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()
        self._said.close()

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str) -> None:
        """Make a bucket."""
        self._ask("PUT", f"/{name}")

    def write(self, bucket: str, key: str, content: bytes) -> None:
        """Write an object."""
        self._ask("PUT", f"/{bucket}/{quote(key)}", content)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of all objects."""
        listing = self._ask("GET", f"/{bucket}?list-type=2&prefix={quote(prefix)}").decode()
        return [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", listing, re.DOTALL)]

    def content(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """Every object, by its key."""
        return {key: self._ask("GET", f"/{bucket}/{quote(key)}") for key in self.keys(bucket, prefix)}

    def uploads(self, bucket: str) -> int:
        """The uploads in parts that were neither completed nor removed."""
        return self._ask("GET", f"/{bucket}?uploads").count(b"<UploadId>")

    def _ask(self, method: str, target: str, content: bytes = b"") -> bytes:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, target, content or None, {"Authorization": _ANYBODY})
            with connection.getresponse() as answer:
                body = answer.read()
                if answer.status >= 300:
                    raise EngineError(f"{method} {target}: {answer.status} {body[:500]!r}")
                return body
        finally:
            connection.close()

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self._ask("GET", "/moto-api/")
            except (OSError, EngineError) as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    self._said.seek(0)
                    raise EngineError(f"moto did not start: {error}; {self._said.read()[-2000:]!r}") from error
                _PAUSE.wait(_LOOK_SECONDS)
            else:
                return
