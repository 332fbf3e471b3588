"""What an agent reads of its service: addresses, and answers that come in pieces."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pilotage.agent.link.connect import Announcement, Credentials, announced, ends_at, read_token
from pilotage.agent.link.link import Address, Answer, LinkBroken, _whole_answer


@pytest.mark.parametrize(
    "text, expected",
    [
        ("unix:/a/b", Address("/a/b", "", 0, False, "")),
        ("http://host", Address("", "host", 80, False, "")),
        ("https://host", Address("", "host", 443, True, "")),
        ("http://host:8080", Address("", "host", 8080, False, "")),
        ("https://host:8443/", Address("", "host", 8443, True, "/")),
        ("http://host:1/under/path/", Address("", "host", 1, False, "/under/path")),
        ("http://[::1]", Address("", "::1", 80, False, "")),
        ("http://[::1]:90", Address("", "::1", 90, False, "")),
    ],
)
def test_an_address_is_a_path_or_a_host_with_a_port(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize("text", ["", "unix:", "ftp://host", "host:80", "http://", "http:///path", "http://host:port"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not the address|invalid literal"):
        Address.parse(text)


_CHUNKED = b"Transfer-Encoding: Chunked\r\n\r\n"
_ANSWERS: dict[str, tuple[bytes, int, bytes]] = {
    "content": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc"),
    "none": (b"HTTP/1.0 404 Not Found\r\nX: y\r\n\r\n", 404, b""),
    "no content": (b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
    "without words": (b"HTTP/1.1 200\r\ncontent-length:2\r\n\r\n\r\n", 200, b"\r\n"),
    "informational": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x"),
    "twice": (b"HTTP/1.1 199 A\r\n\r\nHTTP/1.1 102 B\r\n\r\nHTTP/1.1 500 C\r\nContent-Length: 0\r\n\r\n", 500, b""),
    "chunks": (b"HTTP/1.1 200 OK\r\n" + _CHUNKED + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"abc0123456789"),
    "no chunks": (b"HTTP/1.1 200 OK\r\n" + _CHUNKED + b"0\r\n\r\n", 200, b""),
}  # fmt: skip


@pytest.mark.parametrize("name", _ANSWERS)
def test_an_answer_is_whole_with_its_last_byte_and_not_before(name: str) -> None:
    text, status, body = _ANSWERS[name]
    for size_bytes in range(len(text)):
        assert _whole_answer(bytearray(text[:size_bytes])) is None
    for more in (b"", b"HTTP/1.1 200 OK\r\n\r\n"):
        found = _whole_answer(bytearray(text + more))
        assert found is not None
        answer, size_bytes = found
        assert (answer.status, answer.body, size_bytes) == (status, body, len(text))


def test_the_fields_of_an_answer_have_small_names() -> None:
    found = _whole_answer(bytearray(b"HTTP/1.1 200 OK\r\nPilotage-Token:  a:b \r\nX:\r\n\r\n"))
    assert found is not None
    assert found[0] == Answer(200, {b"pilotage-token": b"a:b", b"x": b""}, b"")


@pytest.mark.parametrize(
    "text",
    [
        b"SMTP 200 OK\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + _CHUNKED + b"zz\r\n",
    ],
)  # fmt: skip
def test_what_speaks_no_http_is_told(text: bytes) -> None:
    with pytest.raises(LinkBroken, match="does not speak HTTP"):
        _whole_answer(bytearray(text))


def test_an_announcement_says_where_a_service_is(tmp_path: Path) -> None:
    file = tmp_path / "announced"
    assert announced("") == announced(str(file)) == Announcement("", "")
    for content in ("[]", "{", '"text"'):
        file.write_text(content)
        assert announced(str(file)) == Announcement("", "")
    file.write_text('{"url": "http://a", "ca_file": "/ca", "more": 1}')
    assert announced(str(file)) == Announcement("http://a", "/ca")


def _token(**claims: Any) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{middle}.signature"


@pytest.mark.parametrize(
    "token, ends",
    [
        (_token(exp=12), 12.0), (_token(exp=12, a="b"), 12.0), (_token(exp=12, a="bc"), 12.0), (_token(), None),
        (_token(exp="x"), None), (_token(exp=None), None), ("secret", None), ("a.b", None), ("a.W10.c", None), ("a.b.c.d", None),
    ],
)  # fmt: skip
def test_a_token_may_say_when_it_ends(token: str, ends: float | None) -> None:
    assert ends_at(token) == ends


def test_a_token_is_what_stands_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert read_token("") == read_token(str(file)) == ""
    file.write_text(" secret \n")
    assert read_token(str(file)) == "secret"
    file.write_bytes(b"\xff")
    assert read_token(str(file)) == ""


def test_the_token_of_a_pilot_goes_before_that_of_its_site_and_the_later_before_the_earlier(tmp_path: Path) -> None:
    given, own = tmp_path / "given", tmp_path / "own"
    site, pilots, later = _token(exp=900), _token(exp=10, pilot="p"), _token(exp=20, pilot="p")
    given.write_text(site)
    assert Credentials(str(given))() == site
    own.write_text(pilots)
    credentials = Credentials(str(given), own)
    assert credentials() == pilots
    own.write_text(later)
    assert credentials() == pilots, "it is read when it is looked for"
    credentials.look_again()
    assert credentials() == later
    own.write_text(pilots)
    credentials.look_again()
    assert credentials() == later, "the one that ends later stays"
    given.write_text("a secret without an end")
    credentials.look_again()
    assert credentials() == "a secret without an end"


def test_a_rejected_token_of_a_pilot_is_followed_by_that_of_its_site_at_once_and_that_one_by_none(
    tmp_path: Path,
) -> None:
    given, own = tmp_path / "given", tmp_path / "own"
    site, pilots = _token(exp=900), _token(exp=10, pilot="p")
    given.write_text(site)
    own.write_text(pilots)
    credentials = Credentials(str(given), own)
    assert (credentials(), credentials.refused(), credentials()) == (pilots, True, site)
    assert credentials.refused() is False
