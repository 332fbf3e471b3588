"""What stores read from outside, whatever it is: locators, packets of SFTP, answers of WebDAV, files of credentials."""

from __future__ import annotations

import math
import re
import struct
import tempfile
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pilotage.adapters.stores.http.connections import url_of
from pilotage.adapters.stores.http.multistatus import BadAnswer, Resource, http_time, read_multistatus
from pilotage.adapters.stores.s3 import _read_credential
from pilotage.adapters.stores.sftp.protocol import (
    Attributes,
    BadPacket,
    Fields,
    Kind,
    Wide,
    packet,
    packet_length,
    read_answer,
    read_entries,
    read_extensions,
)
from pilotage.model.locators import BadLocator, Locator, locator_below, parse_locator, shown_locator
from pilotage.ports.job_tree import StoreError
from tests.kit.reaching import share

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: ".." not in name.split("/") and not name.startswith("/")
)
BASES = st.sampled_from(["s3://bucket/p", "sftp://me@host:22/p", "file:///p", "/p", "s3://bucket/p/"])
TEXTS = st.text() | st.from_regex(r"(s3|sftp|https?|file):/{0,3}[a-z@:\[\]0-9.%?#/ ]{0,20}", fullmatch=True)


def parsed(text: str) -> Locator | None:
    try:
        return parse_locator(text)
    except BadLocator:
        return None


@given(TEXTS)
@example("http://[::1")
@example("http://host:99999/")
@example("http://a:b@c/")
@example("s3://B_u.cket:1/x")
def test_a_text_is_a_locator_or_refused(text: str) -> None:
    found = parsed(text)
    if found is not None:
        assert found.scheme
        assert ".." not in found.path.split("/") or found.scheme.startswith("http")


def test_enough_of_these_texts_are_locators() -> None:
    assert share(TEXTS, lambda text: parsed(text) is not None) > 0.1


@given(BASES, NAMES)
def test_every_name_has_a_locator_that_leads_back_to_it(base: str, name: str) -> None:
    locator = locator_below(base, name)
    assert parse_locator(locator).path == f"/p/{name}"
    assert "\n" not in shown_locator(locator)


@given(st.text(), st.text(st.characters(categories=["L", "N"])))
def test_the_query_of_a_url_is_never_shown(path: str, signature: str) -> None:
    url = f"https://host/{quote(path, safe='')}"
    assert shown_locator(f"{url}?X-Amz-Signature={signature}") == shown_locator(url)


@given(TEXTS | NAMES.map(lambda name: f"https://host/{name}"))
@example("https://host/a%zz%20b")
@example("https://bücher.example/ä b")
def test_a_url_has_nothing_that_a_request_cannot_carry(text: str) -> None:
    try:
        url = url_of(text)
    except StoreError:
        return
    assert re.fullmatch(r"[!-~]+", url)
    assert url.startswith(("http://", "https://"))


FIELDS = st.lists(
    st.integers(0, 2**32 - 1)
    | st.integers(0, 2**64 - 1).map(Wide)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)


@given(st.sampled_from(list(Kind)), FIELDS, st.integers(0, 2**32 - 1))
def test_a_packet_has_the_fields_that_it_was_made_of(kind: Kind, fields: list[int | str | bytes], request: int) -> None:
    made = packet(kind, *fields, request=request)
    assert packet_length(made) == len(made) - 4
    answer = read_answer(made[4:])
    assert answer.kind is kind
    if kind is Kind.VERSION:
        return  # the one without a number
    assert answer.request == request
    reading = Fields(answer.body)
    for field in fields:
        match field:
            case Wide():
                assert reading.wide() == field
            case int():
                assert reading.number() == field
            case str():
                assert reading.text() == field
            case bytes():
                assert reading.content() == field
    assert not reading.left


@given(st.binary())
@example(b"")
@example(bytes([Kind.NAME]) + struct.pack(">II", 1, 2**32 - 1))
@example(bytes([Kind.NAME]) + struct.pack(">III", 1, 1, 2**32 - 1))
@example(bytes([Kind.ATTRS]) + struct.pack(">III", 1, 0x8000_0000, 2**32 - 1))
def test_any_bytes_are_a_packet_or_none(content: bytes) -> None:
    for kind in (Kind.NAME, Kind.ATTRS, Kind.VERSION, Kind.HANDLE):
        for some in (content, bytes([kind]) + content):
            try:
                answer = read_answer(some)
            except BadPacket:
                continue
            for read in (read_entries, read_extensions, lambda one: Fields(one.body).attributes()):
                try:
                    read(answer)
                except BadPacket:
                    continue


@given(st.binary(min_size=4))
def test_a_length_is_within_bounds_or_refused(header: bytes) -> None:
    try:
        assert 1 <= packet_length(header) <= 4 << 20
    except BadPacket:
        assert not 1 <= struct.unpack_from(">I", header)[0] <= 4 << 20


@given(
    size=st.none() | st.integers(0, 2**64 - 1),
    mode=st.none() | st.integers(0, 2**16 - 1),
    modified=st.none() | st.integers(0, 2**32 - 1),
    owner=st.none() | st.integers(0, 2**32 - 1),
    extended=st.lists(st.binary(max_size=9), max_size=3),
)
def test_attributes_are_read_whichever_of_them_a_server_sends(
    size: int | None, mode: int | None, modified: int | None, owner: int | None, extended: list[bytes]
) -> None:
    fields = [(1, ">Q", size), (2, ">I4x", owner), (4, ">I", mode), (8, ">4xI", modified)]
    flags = sum(flag for flag, _, value in fields if value is not None) | (0x8000_0000 if extended else 0)
    parts = [struct.pack(">I", flags)]
    parts += [struct.pack(layout, value) for _, layout, value in fields if value is not None]
    if extended:
        parts.append(struct.pack(">I", len(extended)))
        parts += [struct.pack(">I", len(each)) + each for pair in extended for each in (pair, pair)]
    reading = Fields(b"".join(parts))
    expected = Attributes(size_bytes=-1 if size is None else size, modified_at=modified or 0)
    found = reading.attributes()
    assert (found.size_bytes, found.modified_at) == (expected.size_bytes, expected.modified_at)
    assert mode is None or found.mode == mode
    assert not reading.left


XML_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))
RESOURCES = st.builds(
    Resource,
    href=XML_TEXT.map(lambda text: f"/{text}".strip()),
    is_folder=st.booleans(),
    size_bytes=st.integers(0, 10**15) | st.just(-1),
    modified=st.sampled_from(["", "Wed, 18 Nov 2026 16:00:00 GMT"]),
    tag=XML_TEXT.map(str.strip),
)


def multistatus(resources: list[Resource], *, prefix: str) -> str:
    """An answer of a server that likes a prefix for its names."""
    colon, declared = (f"{prefix}:", f"xmlns:{prefix}") if prefix else ("", "xmlns")
    parts = [f'<?xml version="1.0" encoding="utf-8"?><{colon}multistatus {declared}="DAV:">']
    for one in resources:
        folder = f"<{colon}collection/>" if one.is_folder else ""
        size = f"<{colon}getcontentlength>{one.size_bytes}</{colon}getcontentlength>" if one.size_bytes >= 0 else ""
        parts.append(
            f"<{colon}response><{colon}href>{escape(one.href)}</{colon}href><{colon}propstat><{colon}prop>"
            f"<{colon}resourcetype>{folder}</{colon}resourcetype>{size}"
            f"<{colon}getlastmodified>{one.modified}</{colon}getlastmodified>"
            f"<{colon}getetag>{escape(one.tag)}</{colon}getetag></{colon}prop>"
            f"<{colon}status>HTTP/1.1 200 OK</{colon}status></{colon}propstat>"
            f"<{colon}propstat><{colon}prop><{colon}getetag>none</{colon}getetag></{colon}prop>"
            f"<{colon}status>HTTP/1.1 404 Not Found</{colon}status></{colon}propstat></{colon}response>"
        )
    return "".join([*parts, f"</{colon}multistatus>"])


@given(st.lists(RESOURCES, max_size=5), st.sampled_from(["", "D", "d", "lp1"]), st.integers(1, 100))
def test_a_multistatus_has_its_resources_however_it_comes(resources: list[Resource], prefix: str, size: int) -> None:
    text = multistatus(resources, prefix=prefix).encode()
    assert read_multistatus(text[at : at + size] for at in range(0, len(text), size)) == resources


@given(st.binary() | st.text().map(str.encode) | st.binary().map(lambda some: b'<multistatus xmlns="DAV:">' + some))
def test_any_bytes_are_a_multistatus_or_none(content: bytes) -> None:
    try:
        read_multistatus([content])
    except BadAnswer:
        return


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "document",
    [
        f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><multistatus xmlns="DAV:"><response><href>&l9;</href></response></multistatus>',
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><multistatus xmlns="DAV:"><response><href>&e;</href></response></multistatus>',
        '<!DOCTYPE multistatus SYSTEM "http://127.0.0.1:1/x.dtd"><multistatus xmlns="DAV:"/>',
        '<multistatus xmlns="DAV:">' + "<a>" * 10_000 + "</a>" * 10_000 + "</multistatus>",
        "<html/>",
        "",
        '<multistatus xmlns="DAV:">',
    ],
)
def test_entities_and_depths_are_refused(document: str) -> None:
    with pytest.raises(BadAnswer):
        read_multistatus([document.encode()])


@given(st.text())
@example("Wed, 18 Nov 2026 16:00:00 GMT")
@example("Wed, 18 Nov 99999999 16:00:00 GMT")
def test_a_date_of_http_is_a_time_or_none(text: str) -> None:
    assert math.isfinite(http_time(text))


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("[default]\naws_access_key_id = a\naws_secret_access_key = b%c\n")
@example("aws_secret_access_key = hidden!")
@example("[default]\naws_secret_access_key\n = hidden!")
def test_a_file_of_credentials_has_one_or_is_refused_unquoted(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "credentials")
        file.write_bytes(text.encode())
        try:
            told = str(_read_credential(file, "default")["access_key_id"])
        except StoreError as refused:
            told = str(refused)
    assert "hidden!" not in told
