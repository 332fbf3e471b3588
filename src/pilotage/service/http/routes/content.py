"""Files of jobs from elsewhere over HTTP: contents are sent and read by sha256, in ranges; results are read by name.

A user reads a content that they sent, or one of a job that they may read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from pilotage.model.locators import CONTENT
from pilotage.ports import ContentStore, Journal, WrongContent
from pilotage.reading.access import READ, SUBMIT
from pilotage.reading.views import View
from pilotage.service.http.errors import BadParameter, Malformed, NotARange, TooLarge, UnknownContent
from pilotage.service.http.ranges import PIECE_BYTES, ranged_reply
from pilotage.service.http.routes.outputs import granted_files
from pilotage.service.http.routing import (
    OCTETS,
    ApiRequest,
    JobPath,
    PackagePath,
    Reply,
    Route,
    ServicesArgument,
    get,
    in_path,
    in_query,
    post,
    put,
)
from pilotage.service.http.services import backend_of
from pilotage.service.http.submissions import content_of

PIECE_BYTES_MAX = 64 * 2**20
"""The largest body of one upload request; a larger file is sent in several."""
ASKED_MAX = 10_000
"""The most checksums in one question for missing contents."""
UPLOAD_OFFSET = "Upload-Offset"
"""How many bytes of an unfinished upload are there."""

Value = TypeVar("Value")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")
_NO_PIECE = re.compile(r"bytes \*/([0-9]{1,15})")
_BATCH_LINE = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,9})\n")
_MARK = re.compile(r"\.pilotage-seen-[0-9a-f]{32}")
_MARK_BYTES = 32

Sha256Path = Annotated[str, in_path("The sha256 of the content: 64 hexadecimal digits.")]
OfJob = Annotated[str | None, in_query("A job that the content came with.", name="job", max_length=64)]
FileName = Annotated[str, in_query("The name of the file, as the manifest of the package has it.", name="name")]


class MissingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Checksums of files that a job needs."""

    sha256: tuple[str, ...]


class MissingView(View, frozen=True, kw_only=True):
    """Those that have to be sent, in the order of the question."""

    missing: list[str]


class KeptContentView(View, frozen=True, kw_only=True):
    """A file that you keep: jobs name it by its locator."""

    locator: str
    sha256: str
    size_bytes: int
    stored_at: float


class KeptContentsView(View, frozen=True, kw_only=True):
    """The files that you keep, by sha256."""

    files: list[KeptContentView]


class SeenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A folder and the mark that was written there, to find out whether the service sees that folder."""

    folder: str
    mark: str
    text: str


class SeenView(View, frozen=True, kw_only=True):
    """Whether the service found the mark in its folder of that name."""

    seen: bool


class StoredView(View, frozen=True, kw_only=True):
    """How many files of a batch are stored."""

    stored: int


class UploadView(View, frozen=True, kw_only=True):
    """How far an upload is."""

    sha256: str
    received_bytes: int
    complete: bool


_missing_request = msgspec.json.Decoder(MissingRequest)
_seen_request = msgspec.json.Decoder(SeenRequest)


async def _upload_state(request: ApiRequest, services: ServicesArgument, sha256: Sha256Path) -> Reply[None]:
    """200 and its length: you sent it, and it is complete; 202 and `Upload-Offset`: how many bytes of it are there."""
    content = content_of(services)
    _check(sha256)
    user = request.user.user
    if await services.do(partial(content.is_held, sha256, by=user)):
        size_bytes = await services.do(content.size, sha256)
        return Reply(status=200, headers={"Upload-Length": str(size_bytes), UPLOAD_OFFSET: str(size_bytes)})
    received = await services.do(partial(content.received, sha256, by=user))
    if not received:
        raise UnknownContent("you sent no such content", subject=sha256)
    return Reply(status=202, headers={UPLOAD_OFFSET: str(received)})


upload_state = Route(
    method="HEAD",
    path="/v1/content/{sha256:str}",
    handler=_upload_state,
    operation_id="upload_state",
    needs=(SUBMIT,),
    summary="How much of a file was sent",
    tags=["running"],
    faults=(400, 401, 403, 404, 409, 503),
)


@get(
    "/v1/content/{sha256:str}",
    operation_id="get_content",
    needs=(READ,),
    summary="A file that was sent, or that came with a job",
    tags=["running"],
    media_type=OCTETS,
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def get_content(
    request: ApiRequest, services: ServicesArgument, sha256: Sha256Path, job: OfJob = None
) -> Reply[bytes]:
    """The content, or the piece of it that `Range` names. Without `job`, only one that you sent."""
    backend = backend_of(services)
    content = content_of(services)
    _check(sha256)
    if job is not None:
        row = await services.ask(services.reader.job, request.user, job)
        allowed = sha256 in await services.do(backend.brought_by, row)
    else:
        allowed = await services.do(partial(content.is_held, sha256, by=request.user.user))
    size_bytes = await services.do(content.size, sha256) if allowed else None
    asked = request.header("range")
    if size_bytes is not None:
        return await ranged_reply(partial(_read, content, sha256), asked=asked, size_bytes=size_bytes)
    small = await services.do(services.journal.content, sha256) if allowed else None
    if small is None:
        raise UnknownContent("no such content is stored here, or none that you may read", subject=sha256)
    known = small
    return await ranged_reply(lambda offset, size: known[offset : offset + size], asked=asked, size_bytes=len(known))


def _read(content: ContentStore, sha256: str, offset: int, size_bytes: int) -> bytes:
    return content.read(sha256, offset=offset, size_bytes=size_bytes)


@put(
    "/v1/content/{sha256:str}",
    operation_id="upload_content",
    needs=(SUBMIT,),
    body="content",
    summary="Send a file that a job needs, or a piece of it",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=PIECE_BYTES_MAX,
)
async def upload_content(request: ApiRequest, services: ServicesArgument, sha256: Sha256Path) -> UploadView:
    """Store the whole file, or the piece that `Content-Range: bytes FIRST-LAST/SIZE` names, which must continue the upload.

    An empty body with `bytes */SIZE` asks to verify an upload of which everything was sent. With the last piece the checksum is verified; if it is wrong, the upload is removed and the answer is 409.
    """
    content = content_of(services)
    _check(sha256)
    user = request.user.user
    told = request.header("content-range")
    if not told:
        body = await request.body()
        await asyncio.to_thread(_store_whole, content, sha256, body, user)
        return UploadView(sha256=sha256, received_bytes=len(body), complete=True)
    start, end, size_bytes = _content_range(told)
    if size_bytes > services.settings.service.content_bytes_max:
        raise TooLarge(
            "this file is too large for the service",
            expected=f"at most {services.settings.service.content_bytes_max:,} bytes",
            got=f"{size_bytes:,} bytes",
            next_step="see the setting service.content_bytes_max",
        )
    if await services.do(partial(content.is_held, sha256, by=user)):
        return UploadView(sha256=sha256, received_bytes=size_bytes, complete=True)
    append = partial(content.append, sha256, by=user, size_bytes=size_bytes)
    if start == end:
        start = end = await services.do(partial(content.received, sha256, by=user))
    offset, held, more = start, bytearray(), True
    while more:
        piece, more = await request.piece()
        held += piece
        if offset + len(held) > end:
            raise Malformed("the body is longer than its Content-Range", got=told[:80])
        if held and (len(held) >= PIECE_BYTES or not more):
            offset = await asyncio.to_thread(append, bytes(held), offset=offset)
            held.clear()
    if offset != end:
        raise Malformed("the body is shorter than its Content-Range", got=f"{offset - start:,} bytes: {told[:80]}")
    if offset == size_bytes:
        await asyncio.to_thread(partial(content.complete, sha256, by=user, size_bytes=size_bytes))
    return UploadView(sha256=sha256, received_bytes=offset, complete=offset == size_bytes)


def _store_whole(content: ContentStore, sha256: str, body: bytes, user: str) -> None:
    if content.is_held(sha256, by=user):
        return
    received = content.received(sha256, by=user)
    if received <= len(body):
        content.append(sha256, body[received:], by=user, offset=received, size_bytes=len(body))
    content.complete(sha256, by=user, size_bytes=len(body))


@post(
    "/v1/content/batch",
    status=200,
    operation_id="upload_contents",
    needs=(SUBMIT,),
    body="content",
    summary="Send many small files at once",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=PIECE_BYTES_MAX,
)
async def upload_contents(request: ApiRequest, services: ServicesArgument) -> StoredView:
    """Store files that follow one another, each after a line with its sha256, a blank, and its size in bytes."""
    content = content_of(services)
    files = await services.do(_files_of, await request.body())
    await asyncio.to_thread(partial(content.add_small, files, by=request.user.user))
    return StoredView(stored=len(files))


@post(
    "/v1/content/captured",
    status=200,
    operation_id="put_contents",
    needs=(SUBMIT,),
    body="content",
    summary="Store many small files that a job brings along",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503, 507),
    body_bytes_max=PIECE_BYTES_MAX,
)
async def put_contents(request: ApiRequest, services: ServicesArgument) -> StoredView:
    """Store files in the book, as `POST /v1/content` does, framed as in `POST /v1/content/batch`."""
    backend_of(services)
    files = await services.do(_files_of, await request.body())
    await services.do(_capture, services.journal, files)
    return StoredView(stored=len(files))


def _capture(journal: Journal, files: Mapping[str, bytes]) -> None:
    wrong = next((each for each, data in files.items() if hashlib.sha256(data).hexdigest() != each), None)
    if wrong is not None:
        raise WrongContent(
            "the bytes that were sent have another checksum, and were not stored",
            subject=wrong,
            next_step="send the file again; it may have changed meanwhile",
        )
    journal.put_contents(tuple(files.values()))


def _files_of(body: bytes) -> dict[str, bytes]:
    """The files of a batch, by their sha256."""
    files: dict[str, bytes] = {}
    position = 0
    while position < len(body):
        line = _BATCH_LINE.match(body, position)
        start = line.end() if line is not None else 0
        end = start + int(line[2]) if line is not None else len(body) + 1
        if line is None or end > len(body):
            raise Malformed("this is not a batch of files", expected="SHA256 SIZE, a newline and the bytes, each time")
        files[line[1].decode()] = body[start:end]
        position = end
    return files


def _content_range(told: str) -> tuple[int, int, int]:
    """The first byte, the one after the last, and the size of the whole file; without a piece, both are 0."""
    if (whole := _NO_PIECE.fullmatch(told.strip())) is not None:
        return 0, 0, int(whole[1])
    found = _CONTENT_RANGE.fullmatch(told.strip())
    start, last, size_bytes = (int(each) for each in found.groups()) if found is not None else (1, 0, 0)
    if not start <= last < size_bytes:
        raise NotARange("this is not a range of a file", expected="bytes FIRST-LAST/SIZE", got=told[:80])
    return start, last + 1, size_bytes


@post(
    "/v1/content/missing",
    status=200,
    operation_id="missing_content",
    needs=(SUBMIT,),
    body="checksums",
    summary="Which files have to be sent",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503),
)
async def missing_content(request: ApiRequest, services: ServicesArgument) -> MissingView:
    """Those of some checksums whose content you have not sent, or that is no longer there. The others are kept for a while."""
    content, asked = content_of(services), await _checksums(request)
    return MissingView(missing=await services.do(partial(content.missing, asked, by=request.user.user)))


@get(
    "/v1/content",
    operation_id="kept_content",
    needs=(READ,),
    summary="The files that you keep",
    tags=["running"],
    faults=(401, 403, 409, 503),
)
async def kept_content(request: ApiRequest, services: ServicesArgument) -> KeptContentsView:
    """What you keep in the content store, by sha256: files that you sent for that, and outputs of your jobs."""
    found = await services.do(partial(content_of(services).kept, by=request.user.user))
    return KeptContentsView(
        files=[
            KeptContentView(
                locator=f"{CONTENT}{each.sha256}",
                sha256=each.sha256,
                size_bytes=each.size_bytes,
                stored_at=each.stored_at,
            )
            for each in found
        ]
    )


@post(
    "/v1/content/keep",
    status=200,
    operation_id="keep_contents",
    needs=(SUBMIT,),
    body="checksums",
    summary="Keep files that you sent",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503, 507),
)
async def keep_contents(request: ApiRequest, services: ServicesArgument) -> MissingView:
    """Keep contents that you sent until you drop them. Those that you have not sent are answered, and not kept."""
    content, asked = content_of(services), await _checksums(request)

    def keep() -> list[str]:
        return [each for each in asked if not content.keep(each, by=request.user.user)]

    return MissingView(missing=await asyncio.to_thread(keep))


@post(
    "/v1/content/drop",
    status=200,
    operation_id="drop_contents",
    needs=(SUBMIT,),
    body="checksums",
    summary="Do not keep files any more",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503),
)
async def drop_contents(request: ApiRequest, services: ServicesArgument) -> MissingView:
    """You do not hold these contents any more: each goes when nobody holds it, and no job needs it.

    Those that you did not hold are answered.
    """
    content, asked = content_of(services), await _checksums(request)

    def drop() -> list[str]:
        return [each for each in asked if not content.drop(each, by=request.user.user)]

    return MissingView(missing=await asyncio.to_thread(drop))


async def _checksums(request: ApiRequest) -> tuple[str, ...]:
    asked = _decoded(_missing_request, await request.body(), "list of checksums")
    if len(asked.sha256) > ASKED_MAX:
        raise TooLarge("these are too many checksums", expected=f"at most {ASKED_MAX:,}", got=f"{len(asked.sha256):,}")
    for sha256 in asked.sha256:
        _check(sha256)
    return asked.sha256


@post(
    "/v1/folders/seen",
    status=200,
    operation_id="folder_seen",
    needs=(SUBMIT,),
    body="folder mark",
    summary="Whether the service sees a folder of the client",
    tags=["running"],
    faults=(400, 401, 403, 409, 413, 503),
)
async def folder_seen(request: ApiRequest, services: ServicesArgument) -> SeenView:
    """Look for a mark that the client wrote into a folder: another folder of the same name does not have it."""
    backend_of(services)
    asked = _decoded(_seen_request, await request.body(), "mark of a folder")
    if _MARK.fullmatch(asked.mark) is None or len(asked.text) != _MARK_BYTES:
        raise Malformed("this is not a mark", expected=".pilotage-seen- and 32 hexadecimal digits, and a text of 32")
    return SeenView(seen=await services.do(_has_mark, asked))


def _has_mark(asked: SeenRequest) -> bool:
    if not os.path.isabs(asked.folder) or "\0" in asked.folder:  # noqa: PTH117
        return False
    try:
        descriptor = os.open(f"{asked.folder}/{asked.mark}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_file and os.read(descriptor, _MARK_BYTES + 1) == asked.text.encode("utf-8", "replace")
    finally:
        os.close(descriptor)


@get(
    "/v1/jobs/{job:str}/packages/{package:str}/file",
    operation_id="output_file",
    needs=(READ,),
    summary="An output file of a package",
    tags=["running"],
    media_type=OCTETS,
    faults=(400, 401, 403, 404, 409, 410, 503),
)
async def output_file(
    request: ApiRequest, services: ServicesArgument, job: JobPath, package: PackagePath, name: FileName = ""
) -> Reply[bytes]:
    """A granted output, or the piece of it that `Range` names; its manifest has the sha256 to compare with."""
    backend = backend_of(services)

    def find() -> tuple[str, int]:
        row, files = granted_files(services, request.user, job, package)
        if not name:
            raise BadParameter("which file?", subject="name", expected="the name of an output of the package")
        folder = backend.folder_of(row)
        file = next((each for each in files if each.name == name), None)
        if folder is None or file is None:
            raise UnknownContent("the package has no such output", subject=name[:256])
        there = backend.jobs.tree.look_up(folder, [name]).get(name)
        if there is None or there.size_bytes != file.size_bytes:
            what = "this output is gone" if there is None else "this output was changed since it was granted"
            raise UnknownContent(
                what, subject=name[:256], next_step=f"make it again: pilotage retry --force {job}/{package}"
            )
        return folder, file.size_bytes

    folder, size_bytes = await services.ask(find)
    tree = backend.jobs.tree
    return await ranged_reply(
        lambda offset, size: tree.read(folder, name, offset=offset, size_bytes=size),
        asked=request.header("range"),
        size_bytes=size_bytes,
    )


def _check(sha256: str) -> None:
    if _SHA256.fullmatch(sha256) is None:
        raise Malformed("this is not a sha256", subject=sha256[:64], expected="64 hexadecimal digits, in lower case")


def _decoded(decoder: msgspec.json.Decoder[Value], body: bytes, noun: str) -> Value:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise Malformed(f"the body is not a {noun}: {fault}") from None


CONTENT_ROUTES = (
    missing_content,
    upload_contents,
    put_contents,
    kept_content,
    keep_contents,
    drop_contents,
    upload_state,
    get_content,
    upload_content,
    folder_seen,
    output_file,
)
