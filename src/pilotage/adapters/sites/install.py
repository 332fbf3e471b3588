"""Installs what agents need at a site, by running commands there: the agent, the CA certificate and a token."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import posixpath
import secrets
import shlex
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from zipfile import ZIP_DEFLATED

from pilotage.adapters.closed_folders import make_closed
from pilotage.adapters.sites.commands import Caller
from pilotage.adapters.sites.zipapp import archive, digest
from pilotage.agent.batch import Call, Unknown
from pilotage.agent.batch.pilot_job import OUTPUT_FOLDER, STATE_FOLDER
from pilotage.agent.link.connect import ends_at
from pilotage.model.errors import PilotageError
from pilotage.model.version import VERSION

log = logging.getLogger(__name__)

HOME_FOLDER = ".pilotage-site"
ANNOUNCEMENT = "service.json"
OLD_DAYS = 30
"""Old outputs and agents of earlier versions are removed after so many days."""
RENEW_LEFT = 0.5
"""A token is replaced when this part of its life is left: a queued agent may read it days later."""
CHECKED_SECONDS = 600.0
"""How long the installed agent counts as unchanged; then its digest is checked before the next use."""
_HERE, _AGENT = "here:", "agent:"
_PACKING = threading.Lock()

_PREPARE = """\
umask 077
cd || exit
mkdir -p {folder} || exit
cd {folder} && chmod 700 . && mkdir -p {output} {state} || exit
find . -maxdepth 2 \\( -name 'agent-*.pyz' -o -name '*.out' -o -name '.*.new' \\) -type f -mtime +{days} ! -name {agent} \
-exec rm -f {{}} + 2>/dev/null
echo "{here}$(pwd)"
if [ -s {agent} ]; then
  {{ sha256sum < {agent} || shasum -a 256 < {agent} || openssl dgst -sha256 -r < {agent}; }} 2>/dev/null | sed 's/^/agent:/'
fi
"""
# A broken connection looks like the end of the file: the file is renamed only if it is complete.
_PUT = """\
umask 077
file=$1 draft=$(dirname "$1")/.$(basename "$1").$$.new
cat > "$draft" && chmod "$2" "$draft" && [ "$(wc -c < "$draft")" -eq "$3" ] && mv -f "$draft" "$file" && exit
status=$?
rm -f "$draft"
exit $((status ? status : 1))
"""


class Installation:
    """The folder of one service at one site, with the files of its agents; installed at the first use."""

    def __init__(
        self,
        caller: Caller,
        *,
        folder: str,
        prefix: str,
        ca_file: Callable[[], Path | None],
        token: Callable[[], str],
        server: Callable[[], str] = str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take a caller, the user's folder and the sources of the files; `server` returns our own address."""
        self._caller = caller
        self._named = posixpath.join(home_relative(folder), prefix)
        self._ca_file = ca_file
        self._make_token = token
        self._server = server
        self._clock = clock
        self._announced = b""  # our address, as last written there
        self._folder = ""
        self._token = ""
        self._renew_at = 0.0
        self._ca_digest = b""
        self._agent = ""  # its file name, once installed
        self.agent_sha256 = ""  # its digest, once installed
        self._checked_at = 0.0

    @property
    def agent(self) -> str:
        """The path of the agent, once installed."""
        return f"{self._folder}/{self._agent}"

    @property
    def token_file(self) -> str:
        """The path of the token; empty if there is none."""
        return f"{self._folder}/token" if self._token else ""

    @property
    def ca_file(self) -> str:
        """The path of the CA certificate; empty if there is none."""
        return f"{self._folder}/ca.pem" if self._ca_digest else ""

    @property
    def announcement(self) -> str:
        """The path of the announcement; empty if there is none."""
        return f"{self._folder}/{ANNOUNCEMENT}" if self._announced else ""

    def ensure(self) -> str:
        """Install what is missing and return the folder. Raises `Unknown`."""
        if not self._folder or not 0.0 <= self._clock() - self._checked_at < CHECKED_SECONDS:
            self._prepare()
        self.refresh()
        return self._folder

    def refresh(self) -> None:
        """Update the token, the CA certificate and the address, once something is installed."""
        if not self._folder:
            return
        now = self._clock()
        if now >= self._renew_at:
            token = self._make_token()
            if token:
                put(self._caller, f"{self._folder}/token", token.encode("ascii") + b"\n", mode=0o600)
            self._token = token
            end = ends_at(token)
            self._renew_at = float("inf") if end is None else end - RENEW_LEFT * (end - now)
        file = self._ca_file()
        content = file.read_bytes() if file is not None else b""
        known = hashlib.sha256(content).digest() if content else b""
        if known != self._ca_digest:
            if content:
                put(self._caller, f"{self._folder}/ca.pem", content, mode=0o600)
            self._ca_digest = known
        self._announce()

    def _announce(self) -> None:
        """Write our current address, for pilots that were started with an earlier one."""
        try:
            url = self._server()
        except PilotageError:  # it is unknown yet, or not reachable from the nodes, which a submission reports
            return
        announcement = json.dumps({"url": url, "ca_file": self.ca_file}).encode() if url else b""
        if announcement and announcement != self._announced:
            put(self._caller, f"{self._folder}/{ANNOUNCEMENT}", announcement + b"\n", mode=0o600)
            self._announced = announcement

    def doubt(self) -> None:
        """Check the installation again at the next use: it may have been removed."""
        self._folder, self._renew_at, self._ca_digest, self._announced = "", 0.0, b"", b""

    def _prepare(self) -> None:
        # Its name contains its digest: a running agent reads from its file, which must not change.
        content, known = _packed(digest())
        self._agent, self.agent_sha256 = f"agent-{VERSION}-{known[:12]}.pyz", known
        script = _PREPARE.format(
            folder=shlex.quote(self._named),
            output=OUTPUT_FOLDER,
            state=STATE_FOLDER,
            agent=shlex.quote(self._agent),
            days=OLD_DAYS,
            here=_HERE,
        )
        answer = self._caller.run(Call(("sh",), script))
        lines = answer.stdout.splitlines()
        folder = next((line[len(_HERE) :] for line in lines if line.startswith(_HERE)), "")
        if answer.exit_status != 0 or not folder:
            raise Unknown(f"cannot use the folder {self._named}: {' '.join(answer.stderr.split()) or 'no message'}")
        found = next((line[len(_AGENT) :][: len(known)] for line in lines if line.startswith(_AGENT)), "")
        if found != known:
            if found:
                log.warning("%s/%s has changed since it was installed, and is installed again", folder, self._agent)
            put(self._caller, f"{folder}/{self._agent}", content, mode=0o700)
        self._folder, self._checked_at = folder, self._clock()


def _packed(mark: str) -> tuple[bytes, str]:
    """The compressed agent, and its digest; packed once for all sites."""
    with _PACKING:
        return _pack(mark)


@lru_cache(maxsize=1)
def _pack(_mark: str) -> tuple[bytes, str]:
    content = archive(compression=ZIP_DEFLATED)
    return content, hashlib.sha256(content).hexdigest()


def put(caller: Caller, path: str, content: bytes, *, mode: int) -> None:
    """Write a file at a site atomically, with its mode from the start. Raises `Unknown`."""
    words = ("sh", "-c", _PUT, "sh", path, f"{mode:o}", str(len(content)))
    answer = caller.run(Call(words, content.decode("utf-8", "surrogateescape")))
    if answer.exit_status != 0:
        raise Unknown(f"cannot write {path}: {' '.join(answer.stderr.split()) or 'no message'}")


def home_relative(folder: str) -> str:
    """A folder relative to the home folder: `~`, `~/x` and `x` are below it, `/x` is not. Raises `ValueError`."""
    if folder.startswith("~") and folder != "~" and not folder.startswith("~/"):
        raise ValueError(f"`~` can only mean your own home folder: {folder!r}")
    text = folder[1:].lstrip("/") if folder.startswith("~") else folder
    if folder and not text:
        return "."
    # A leading hyphen would be taken for an option.
    return posixpath.normpath(text or HOME_FOLDER) if text.startswith("/") else f"./{text or HOME_FOLDER}"


# Distinguishes the batch jobs and files of one service from those of another at the same site.

IDENTITY_FILE = "identity"


def site_prefix(state: Path, site: str) -> str:
    """The prefix of a service's jobs at a site, and the name of its folder there.

    Two services may use one name for a site, and one service may have two sites at one cluster.
    """
    digest = hashlib.sha256(f"{_identity(state)}\n{site}".encode()).hexdigest()
    return f"pilotage-{digest[:10]}"


def _identity(state: Path) -> str:
    """A random id of the state folder, made once."""
    file = state / IDENTITY_FILE
    if not file.exists():
        make_closed(state)
        draft = state / f".{IDENTITY_FILE}-{secrets.token_hex(8)}"
        draft.write_text(secrets.token_hex(16), "ascii")
        try:
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(draft, file)
        finally:
            draft.unlink()
    return file.read_text("ascii").strip()
