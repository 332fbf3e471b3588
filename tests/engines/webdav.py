"""WsgiDAV in a process of its own, on loopback, with a folder of files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType

from tests.engines.errors import EngineError
from tests.engines.postgres import free_port

START_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.05
_PAUSE = threading.Event()  # never set
_PROGRAM = "from wsgidav.server.server_cli import run; run()"


class WebdavServer:
    """A server for everybody, or for one user with a password; it ends with `close`."""

    def __init__(self, *, user: str = "", password: str = "") -> None:
        self.port = free_port()
        self._own = Path(tempfile.mkdtemp(prefix="pilotage-webdav-"))
        self.folder = self._own / "files"
        self.folder.mkdir()
        users = {"*": {user: {"password": password}} if user else True}
        told = {
            "host": "127.0.0.1",
            "port": self.port,
            "provider_mapping": {"/": str(self.folder)},
            "simple_dc": {"user_mapping": users},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        }
        (self._own / "wsgidav.json").write_text(json.dumps(told))
        with (self._own / "log").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "--config", str(self._own / "wsgidav.json")],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> WebdavServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and remove its files."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._own, ignore_errors=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
            try:
                connection.request("OPTIONS", "/")
                with connection.getresponse() as answer:
                    answer.read()
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    told = (self._own / "log").read_text()
                    raise EngineError(f"WsgiDAV did not start: {error}; {told[-2000:]}") from error
                _PAUSE.wait(_LOOK_SECONDS)
            else:
                return
            finally:
                connection.close()
