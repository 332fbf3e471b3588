"""A web server for one folder on the loopback, which costs as little as it can: the kernel sends the files."""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar


class Sender(BaseHTTPRequestHandler):
    """Sends files whole."""

    protocol_version = "HTTP/1.1"
    folder: ClassVar[Path]

    def do_HEAD(self) -> None:
        """The size and version of a file."""
        found = (self.folder / self.path.lstrip("/")).stat()
        self.send_response(200)
        self.send_header("Content-Length", str(found.st_size))
        self.send_header("ETag", f'"{found.st_mtime_ns}"')
        self.end_headers()

    def do_GET(self) -> None:
        """The file."""
        self.do_HEAD()
        self.wfile.flush()
        with (self.folder / self.path.lstrip("/")).open("rb") as file:
            size, offset = os.fstat(file.fileno()).st_size, 0
            while offset < size:
                offset += os.sendfile(self.connection.fileno(), file.fileno(), offset, size - offset)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve the folder in the argument; prints the port."""
    Sender.folder = Path(sys.argv[1])
    with HTTPServer(("127.0.0.1", 0), Sender) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
