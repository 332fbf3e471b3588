"""Files of web servers, by `https://HOST/PATH`; servers that speak WebDAV also take, list and remove files."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from http.client import HTTPResponse
from typing import BinaryIO
from urllib.parse import unquote, urljoin, urlsplit

from pilotage.adapters.stores.contents import (
    DRAFT,
    draft_name,
    open_source,
    pieces_of,
    refuse_changed,
    refuse_other,
    sha256_of,
)
from pilotage.adapters.stores.http.connections import Connections, refuse, url_of
from pilotage.adapters.stores.http.multistatus import BadAnswer, Resource, http_time, read_multistatus
from pilotage.model.locators import locator_below, shown_locator
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports.job_tree import StoreError
from pilotage.ports.store import (
    CHUNK_BYTES,
    AlreadyInStore,
    FileChanged,
    NotInStore,
    PresignedRequest,
    StoreObject,
    StoreUnreachable,
)

_ASKED = (
    b'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop><D:resourcetype/>'
    b"<D:getcontentlength/><D:getlastmodified/><D:getetag/></D:prop></D:propfind>"
)
# Some servers misread these in the address that a file is to be renamed to: such names are written in place.
_MISREAD = re.compile(r"[?;#\x00-\x1f]")
_DONE = frozenset({200, 201, 204})
_NO_HEAD = frozenset({403, 405, 501})  # of servers that answer GET


class HttpStore:
    """Files behind `http` and `https` locators."""

    def __init__(self, settings: StoreSettings) -> None:
        self._connections = Connections(settings)
        self._guard = threading.Lock()
        self._plain: set[str] = set()  # origins without WebDAV

    def stat(self, locator: str) -> StoreObject | None:
        """Look up a locator; None if there is none, or a folder."""
        url = url_of(locator)
        return self._connections.attempt(lambda: self._look(url, locator), locator=locator)

    def is_folder(self, locator: str) -> bool:
        """Whether it is a folder of a WebDAV server; other servers have none."""
        url = url_of(locator)
        return self._connections.attempt(lambda: self._is_folder(url, locator), locator=locator)

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset on, of one version."""
        url = url_of(locator)
        if offset:
            found = self.stat(locator)
            if found is None:
                raise NotInStore("no such file", subject=shown_locator(locator))
            if version and found.version != version:
                raise FileChanged("the file is another one than before", subject=shown_locator(locator))
            if offset >= found.size_bytes >= 0:
                return
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if version.startswith('"'):
            headers["If-Match"] = version

        def begin() -> tuple[ExitStack, HTTPResponse, int]:
            if not version and self._is_folder(url, locator):  # whose content would be a page
                raise NotInStore("not a file", subject=shown_locator(locator))
            with ExitStack() as stack:
                request = self._connections.request("GET", url, headers=headers, follow=True)
                answer = stack.enter_context(request)
                skipped = _begin(answer, offset=offset, version=version, locator=locator)
                return stack.pop_all(), answer, skipped

        stack, answer, skipped = self._connections.attempt(begin, locator=locator)
        with stack:
            yield from _content(answer, skipped=skipped, locator=locator)
        if version and not urlsplit(url).query:  # a server may have sent parts of two versions
            now = self._connections.attempt(lambda: self._head(url, locator), locator=locator)
            if now is None or now.version != version:
                raise FileChanged("the file changed while it was read", subject=shown_locator(locator))

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of a file; it is read for that."""
        return sha256_of(self.read(locator, version=version))

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """The files below a folder of a WebDAV server, sorted by locator; empty if the folder does not exist."""
        url = url_of(prefix).rstrip("/")
        root = unquote(urlsplit(url).path)
        found: list[StoreObject] = []
        folders = [f"{url}/"]
        seen = set()
        while folders:
            folder = folders.pop()
            if folder in seen:
                continue
            seen.add(folder)
            for one in self._connections.attempt(partial(self._members, folder, prefix), locator=prefix):
                address = urljoin(folder, one.href)
                path = unquote(urlsplit(address).path, errors="surrogateescape")
                if not path.startswith(unquote(urlsplit(folder).path)) or path.rstrip("/") == root:
                    continue  # the folder itself, or nothing that was asked for
                if one.is_folder:
                    if path.rstrip("/") != unquote(urlsplit(folder).path).rstrip("/"):
                        folders.append(f"{address.rstrip('/')}/")
                elif not path.rpartition("/")[2].startswith(DRAFT):
                    found.append(_object(locator_below(prefix, path[len(root) + 1 :]), one))
        return iter(sorted(found, key=lambda each: each.locator))

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Send a file to a draft on a WebDAV server, which then renames it."""
        url = url_of(locator)
        with open_source(source) as reading:
            draft = f"{url.partition('?')[0].rpartition('/')[0]}/{draft_name(source, locator)}"
            in_place = bool(_MISREAD.search(unquote(urlsplit(url).path)))

            def send() -> None:
                refuse_other(self._look(url, locator), replaces, locator)
                try:
                    if in_place:
                        only_if = {"If-Match": replaces} if replaces else {"If-None-Match": "*"}
                        self._send(url, reading, headers=only_if, locator=locator, sent=sent)
                    else:
                        self._send(draft, reading, headers={}, locator=locator, sent=sent)
                        self._publish(draft, url, replaces=replaces, locator=locator)
                except BaseException as fault:
                    if not (in_place and isinstance(fault, AlreadyInStore)):
                        with suppress(StoreError):
                            self._remove(url if in_place else draft, locator)
                    raise

            self._connections.attempt(send, locator=locator)
        found = self.stat(locator)
        if found is None:
            raise NotInStore("the file was removed at once", subject=shown_locator(locator))
        return found

    def delete(self, locator: str) -> bool:
        """Remove a file; never a folder, which WebDAV would remove with all that is in it."""
        url = url_of(locator)

        def remove() -> bool:
            return self._look(url, locator) is not None and self._remove(url, locator)

        return self._connections.attempt(remove, locator=locator)

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """Web servers have none."""
        return None

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """Web servers have none."""
        return None

    def close(self) -> None:
        """Close idle connections."""
        self._connections.close()

    def _look(self, url: str, locator: str) -> StoreObject | None:
        if urlsplit(url).path.endswith("/") or self._is_folder(url, locator):
            return None
        return self._head(url, locator)

    def _head(self, url: str, locator: str) -> StoreObject | None:
        try:
            with self._connections.request("HEAD", url, follow=True) as answer:
                answer.read()
                if answer.status not in _NO_HEAD:
                    if answer.status not in (200, 206):
                        refuse(answer, locator=locator)
                    return _described(answer, locator)
            with self._connections.request("GET", url, headers={"Range": "bytes=0-0"}, follow=True) as answer:
                if answer.status not in (200, 206, 416):
                    refuse(answer, locator=locator)
                return _described(answer, locator)
        except NotInStore:
            return None

    def _is_folder(self, url: str, locator: str) -> bool:
        """Whether a WebDAV server has a folder at a URL; a server that does not speak WebDAV is asked once."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        with self._guard:
            if origin in self._plain or parts.query:
                return False
        with self._propfind(url, depth="0") as answer:
            if answer.status == 207:
                return any(one.is_folder for one in _resources(answer, locator))
            answer.read()
            if answer.status == 401:
                refuse(answer, locator=locator)
            if answer.status in (400, 405, 501):
                with self._guard:
                    self._plain.add(origin)
            return False

    def _propfind(self, url: str, *, depth: str) -> AbstractContextManager[HTTPResponse]:
        headers = {"Depth": depth, "Content-Type": "application/xml; charset=utf-8"}
        return self._connections.request("PROPFIND", url, headers=headers, body=_ASKED)

    def _members(self, url: str, locator: str) -> Sequence[Resource]:
        with self._propfind(url, depth="1") as answer:
            if answer.status in (400, 405, 501):
                raise StoreError("only a WebDAV server can list its files", subject=shown_locator(locator))
            if answer.status == 404:
                answer.read()
                return []
            return _resources(answer, locator)

    def _send(
        self, url: str, reading: BinaryIO, *, headers: dict[str, str], locator: str, sent: Callable[[int], None]
    ) -> None:
        folder = url.rpartition("/")[0]
        if not self._is_folder(f"{folder}/", locator):
            self._make_folder(folder, locator)
        size_bytes = os.fstat(reading.fileno()).st_size
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream", **headers}
        reading.seek(0)
        with self._connections.request("PUT", url, headers=headers, body=pieces_of(reading, sent=sent)) as answer:
            if answer.status in (405, 501):
                raise StoreError("only a WebDAV server takes files", subject=shown_locator(locator))
            if answer.status == 412:
                raise AlreadyInStore("another file is there, and is not replaced", subject=shown_locator(locator))
            if answer.status not in _DONE:
                refuse(answer, locator=locator)
            answer.read()
        refuse_changed(reading, size_bytes=size_bytes, locator=locator)

    def _make_folder(self, url: str, locator: str) -> None:
        for made in (False, True):
            with self._connections.request("MKCOL", f"{url}/") as answer:
                if answer.status in (405, 501) and not self._is_folder(f"{url}/", locator):
                    raise StoreError("only a WebDAV server takes files", subject=shown_locator(locator))
                there = answer.status == 500 and self._is_folder(
                    f"{url}/", locator
                )  # another call made it at the same time
                if there or answer.status in (200, 201, 405):  # it is there now, or was
                    answer.read()
                    return
                if made or answer.status not in (404, 409):
                    refuse(answer, locator=locator)
                answer.read()
            self._make_folder(url.rpartition("/")[0], locator)

    def _publish(self, draft: str, url: str, *, replaces: str, locator: str) -> None:
        if replaces:
            refuse_other(self._look(url, locator), replaces, locator)
        headers = {"Destination": url, "Overwrite": "T" if replaces else "F"}
        with self._connections.request("MOVE", draft, headers=headers) as answer:
            if answer.status == 412:
                raise AlreadyInStore("another file is there, and is not replaced", subject=shown_locator(locator))
            if answer.status in (405, 501):
                raise StoreError("only a WebDAV server takes files", subject=shown_locator(locator))
            if answer.status not in _DONE:
                refuse(answer, locator=locator)
            answer.read()

    def _remove(self, url: str, locator: str) -> bool:
        with self._connections.request("DELETE", url) as answer:
            if answer.status == 404:
                return False
            if answer.status not in (*_DONE, 202):
                refuse(answer, locator=locator)
            answer.read()
        return True


def http_store(settings: StoreSettings) -> HttpStore:
    """The store of the schemes `http` and `https`."""
    return HttpStore(settings)


def _object(locator: str, one: Resource) -> StoreObject:
    return StoreObject(
        locator=locator,
        size_bytes=one.size_bytes,
        modified_at=http_time(one.modified),
        version=_version(one.tag, one.modified, one.size_bytes),
    )


def _described(answer: HTTPResponse, locator: str) -> StoreObject:
    """The file of an answer, by its headers."""
    size_bytes = _whole_size(answer)
    modified = answer.headers.get("Last-Modified", "")
    return StoreObject(
        locator=locator,
        size_bytes=size_bytes,
        modified_at=http_time(modified),
        version=_version(answer.headers.get("ETag", ""), modified, size_bytes),
    )


def _version(tag: str, modified: str, size_bytes: int) -> str:
    """The entity tag, in quotes as HTTP has it even if WebDAV has not; else time and size."""
    if tag:
        return tag if tag.startswith(('"', "W/")) else f'"{tag}"'
    return f"{http_time(modified):.0f}-{size_bytes}"


def _whole_size(answer: HTTPResponse) -> int:
    """The size of the whole file, also where a part of it was asked for; -1 if it is not told."""
    whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if answer.status not in (206, 416):
        whole = answer.headers.get("Content-Length", "")
    return int(whole) if whole.isascii() and whole.isdecimal() and len(whole) < 19 else -1


def _begin(answer: HTTPResponse, *, offset: int, version: str, locator: str) -> int:
    """Check the head of an answer with content; returns how many bytes of it come before the offset."""
    if answer.status not in (200, 206):
        refuse(answer, locator=locator)
    if version and _described(answer, locator).version != version:
        raise FileChanged("the file is another one than before", subject=shown_locator(locator))
    if answer.status == 200:
        return offset  # a server that knows no ranges
    start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if start != str(offset):
        raise StoreError("the server sent another part of the file", subject=shown_locator(locator))
    return 0


def _content(answer: HTTPResponse, *, skipped: int, locator: str) -> Iterator[bytes]:
    length = answer.length  # of what is to come; None if the server does not tell
    count = 0
    while piece := answer.read(CHUNK_BYTES):
        rest = piece[max(0, skipped - count) :]
        count += len(piece)
        if rest:
            yield rest
    if length is not None and count != length:
        raise StoreUnreachable(
            "the content ended early", subject=shown_locator(locator), expected=f"{length} bytes", got=f"{count}"
        )


def _resources(answer: HTTPResponse, locator: str) -> list[Resource]:
    if answer.status != 207:
        refuse(answer, locator=locator)
    try:
        return read_multistatus(iter(lambda: answer.read(CHUNK_BYTES), b""))
    except BadAnswer as fault:
        raise StoreError(f"the server does not speak WebDAV: {fault}", subject=shown_locator(locator)) from fault
