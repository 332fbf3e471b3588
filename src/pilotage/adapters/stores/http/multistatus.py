"""Reads the answers of WebDAV servers to PROPFIND (RFC 4918, multistatus), without entities, and within bounds."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from xml.parsers import expat

import msgspec

BYTES_MAX = 256 << 20
DEPTH_MAX = 64
_DAV = "DAV:"


class BadAnswer(ValueError):
    """The answer of a server is not a multistatus."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder in an answer."""

    href: str
    is_folder: bool = False
    size_bytes: int = -1
    modified: str = ""  # as HTTP writes dates
    tag: str = ""


def read_multistatus(pieces: Iterable[bytes]) -> list[Resource]:
    """The resources of an answer that comes in pieces. Raises `BadAnswer`."""
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # Without a document type there are no entities, which could grow without bound or name files.
    parser.StartDoctypeDeclHandler = reader.refuse_doctype
    count = 0
    try:
        for piece in pieces:
            count += len(piece)
            if count > BYTES_MAX:
                raise BadAnswer(f"more than {BYTES_MAX} bytes")
            parser.Parse(piece, False)
        parser.Parse(b"", True)
    except expat.ExpatError as fault:
        raise BadAnswer(f"not XML: {fault}") from fault
    except UnicodeError as fault:
        raise BadAnswer(f"not UTF-8: {fault}") from fault
    if not reader.found_root:
        raise BadAnswer("not a multistatus")
    return reader.resources


class _Reader:
    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.found_root = False
        self._open: list[str] = []
        self._text: list[str] = []
        self._fields: dict[str, str] = {}
        self._found: dict[str, str] = {}  # of a propstat, until its status is known
        self._status = ""

    def start(self, name: str, _: object) -> None:
        if not self._open:
            self.found_root = name == f"{_DAV} multistatus"
            if not self.found_root:
                raise BadAnswer("not a multistatus")
        if len(self._open) >= DEPTH_MAX:
            raise BadAnswer("nested too deeply")
        space, _, local = name.rpartition(" ")
        self._open.append(local if space == _DAV else f"{space} {local}")
        self._text = []
        match self._open[1:]:
            case ["response"]:
                self._fields = {}
            case ["response", "propstat"]:
                self._found, self._status = {}, ""
            case ["response", "propstat", "prop", "resourcetype", "collection"]:
                self._found["folder"] = "yes"

    def end(self, _: str) -> None:
        text = "".join(self._text).strip()
        match self._open[1:]:
            case ["response", "href"]:
                self._fields.setdefault("href", text)
            case ["response", "propstat", "prop", str(name)] if name != "resourcetype":
                self._found[name] = text
            case ["response", "propstat", "status"]:
                self._status = text
            case ["response", "propstat"] if " 200" in f" {self._status} " or not self._status:
                self._fields |= self._found
            case ["response"] if "href" in self._fields:
                self.resources.append(_resource(self._fields))
        self._open.pop()
        self._text = []

    def text(self, data: str) -> None:
        self._text.append(data)

    def refuse_doctype(self, *_: object) -> None:
        raise BadAnswer("a document type is not allowed")


def _resource(fields: dict[str, str]) -> Resource:
    length = fields.get("getcontentlength", "")
    return Resource(
        href=fields["href"],
        is_folder="folder" in fields,
        size_bytes=int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else -1,
        modified=fields.get("getlastmodified", ""),
        tag=fields.get("getetag", ""),
    )


def http_time(text: str) -> float:
    """The time of an HTTP date, in seconds since 1970; 0 if it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
