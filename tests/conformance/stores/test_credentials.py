"""Credentials that expired, were revoked or renewed: told as such, never as a missing file, and read again once."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from pilotage.adapters.stores.s3 import s3_store
from pilotage.model.settings.stores import StoreSettings
from pilotage.ports import (
    AccessDenied,
    CredentialExpired,
    FileChanged,
    PresignedRequest,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from tests.conformance.stores.places import Place, bucket_place, found, place_in
from tests.engines.s3 import S3Server
from tests.engines.sshd import SshServer
from tests.engines.webdav import WebdavServer
from tests.kit.web_proxy import Answer, WebProxy, error

CALLS: dict[str, Callable[[Place, Path], object]] = {
    "stat": lambda place, _: place.store.stat(place.at("a.dat")),
    "read": lambda place, _: list(place.store.read(place.at("a.dat"))),
    "list": lambda place, _: list(place.store.list(place.base)),
    "put": lambda place, source: place.store.put(str(source), place.at("b.dat")),
    "delete": lambda place, _: place.store.delete(place.at("nothing.dat")),
}


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """A place behind a proxy that checks credentials, and the file that the credential comes from."""

    place: Place
    proxy: WebProxy
    file: Path


def shared_credentials(token: str, *, key: str = "AKIA") -> str:
    """A file as `~/.aws/credentials` is."""
    return f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\naws_session_token = {token}\n"


@pytest.fixture
def s3(s3_server: S3Server, tmp_path: Path) -> Iterator[Guarded]:
    """A bucket whose server knows which session tokens are over."""
    file = tmp_path / "session"
    file.write_text(shared_credentials("good"))
    with bucket_place(s3_server, tmp_path) as behind, WebProxy(s3_server.port) as proxy:
        settings = msgspec.structs.replace(behind.settings, endpoint=proxy.url, credentials_file=str(file))
        proxy.rule = _as_s3
        with found(behind.base, settings) as store:
            yield Guarded(place=msgspec.structs.replace(behind, settings=settings, store=store), proxy=proxy, file=file)


def _as_s3(request: BaseHTTPRequestHandler) -> Answer | None:
    if request.headers.get("x-amz-security-token") == "old":
        return error("ExpiredToken", "The provided token has expired.", status=400)
    if "Credential=REVOKED" in request.headers.get("Authorization", ""):
        return error("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
    if "Credential=STRANGER" in request.headers.get("Authorization", ""):
        return error("AccessDenied", "Access Denied")
    return None


@pytest.fixture
def web(webdav_server: WebdavServer, tmp_path: Path) -> Iterator[Guarded]:
    """A WebDAV server that wants a bearer token."""
    file = tmp_path / "token"
    file.write_text("good\n")
    with WebProxy(webdav_server.port) as proxy:

        def check(request: BaseHTTPRequestHandler) -> Answer | None:
            told = request.headers.get("Authorization")
            return None if told == "Bearer good" else Answer(401, b"", (("WWW-Authenticate", "Bearer"),))

        proxy.rule = check
        folder = webdav_server.folder / tmp_path.name
        settings = StoreSettings(token_file=str(file))
        with place_in(folder, f"{proxy.url}/{tmp_path.name}", settings) as place:
            yield Guarded(place=place, proxy=proxy, file=file)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", [shared_credentials("old"), shared_credentials("", key="REVOKED")])
def test_an_expired_session_of_s3_is_told_as_such(s3: Guarded, source: Path, call: str, bad: str) -> None:
    s3.place.write("a.dat", b"data")
    s3.file.write_text(bad)
    with pytest.raises(CredentialExpired) as refused:
        CALLS[call](s3.place, source)
    assert (refused.value.reason, refused.value.retryable) == ("credential-expired", False)
    assert str(s3.file) in refused.value.next_step
    assert "secret" not in str(refused.value)
    s3.file.write_text(shared_credentials("renewed"))
    CALLS[call](s3.place, source)


@pytest.mark.parametrize("call", CALLS)
def test_a_session_of_s3_that_was_renewed_is_used_without_a_word(s3: Guarded, source: Path, call: str) -> None:
    s3.place.write("a.dat", b"data")
    s3.file.write_text(shared_credentials("renewing"))
    assert s3.place.store.stat(s3.place.at("a.dat")) is not None  # it has read its credential

    def expire(request: BaseHTTPRequestHandler) -> Answer | None:
        over = request.headers.get("x-amz-security-token") == "renewing"
        return error("ExpiredToken", "The provided token has expired.", status=400) if over else None

    s3.proxy.rule = expire
    s3.file.write_text(shared_credentials("renewed"))
    CALLS[call](s3.place, source)


@pytest.mark.parametrize("call", CALLS)
def test_who_may_not_is_not_told_that_a_credential_expired(s3: Guarded, source: Path, call: str) -> None:
    s3.file.write_text(shared_credentials("", key="STRANGER"))
    with pytest.raises(AccessDenied) as refused:
        CALLS[call](s3.place, source)
    assert refused.value.reason == "access-denied"


@pytest.mark.parametrize("text", ["", "[default]\naws_access_key_id = AKIA\n", "secret that is no file of credentials"])
def test_a_file_without_a_credential_is_named_and_not_quoted(s3: Guarded, text: str) -> None:
    s3.file.write_text(text)
    with pytest.raises(AccessDenied) as refused:
        s3.place.store.stat(s3.place.at("a.dat"))
    assert str(s3.file) in str(refused.value)
    assert "secret that" not in str(refused.value)


def test_a_bucket_that_no_settings_describe_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    shared = tmp_path / "credentials"
    shared.write_text("")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    with pytest.raises(AccessDenied) as refused:
        s3_store(StoreSettings()).stat("s3://elsewhere/a.dat")
    assert "no [stores.NAME] describes the bucket" in refused.value.what
    assert 'url = "s3://elsewhere"' in refused.value.next_step


def opened(request: PresignedRequest, body: bytes | None = None) -> bytes:
    """What anybody gets by a presigned request."""
    asked = urllib.request.Request(request.url, data=body, headers=dict(request.headers), method=request.method)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        content: bytes = answer.read()
        return content


def test_anybody_reads_and_writes_by_a_presigned_request_until_it_expires(s3: Guarded, source: Path) -> None:
    place = s3.place
    name = "a b/é%#?.dat"
    put = place.store.presigned_put(place.at(name), seconds=60, content_type="application/x-root")
    assert put is not None
    opened(put, b"from a worker")
    assert place.content() == {name: b"from a worker"}
    with pytest.raises(urllib.error.HTTPError, match="412"):
        opened(put, b"again")
    get = place.store.presigned_get(place.at(name), seconds=60)
    assert get is not None
    asked = urllib.request.Request(get.url)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.read() == b"from a worker"
        assert answer.headers["Content-Type"] == "application/x-root"
    s3.proxy.ahead_seconds = 61.0
    for request in (put, get):
        with pytest.raises(urllib.error.HTTPError) as refused:
            opened(request, b"late" if request is put else None)
        assert b"Request has expired" in refused.value.read()
        assert refused.value.code == 403
    assert "Signature" not in repr(put) + repr(get)
    assert get.expires_at == pytest.approx(put.expires_at, abs=30)


def test_a_presigned_url_may_be_a_locator_and_says_when_it_expired(s3: Guarded) -> None:
    place = s3.place
    place.write("a.dat", b"data" * 1000)
    get = place.store.presigned_get(place.at("a.dat"), seconds=60)
    assert get is not None
    with found(f"{s3.proxy.url}/", StoreSettings()) as web:
        seen = web.stat(get.url)  # which signs a GET, and no HEAD
        assert seen is not None
        assert seen.size_bytes == 4000
        assert b"".join(web.read(get.url, offset=1000, version=seen.version)) == b"data" * 750
        s3.proxy.ahead_seconds = 61.0
        for call in (lambda: web.stat(get.url), lambda: list(web.read(get.url)), lambda: web.checksum(get.url)):
            with pytest.raises(CredentialExpired) as refused:
                call()
            assert "Signature" not in str(refused.value)


@pytest.mark.parametrize("call", CALLS)
def test_a_token_that_a_web_server_refuses_is_read_again_once(web: Guarded, source: Path, call: str) -> None:
    web.place.write("a.dat", b"data")
    web.file.write_text("old")
    with pytest.raises(CredentialExpired) as refused:
        CALLS[call](web.place, source)
    assert (refused.value.reason, str(web.file) in refused.value.next_step) == ("credential-expired", True)
    web.file.write_text("good")
    CALLS[call](web.place, source)


@pytest.mark.parametrize("call", CALLS)
def test_a_renewed_token_is_used_without_a_word(web: Guarded, source: Path, call: str) -> None:
    web.place.write("a.dat", b"data")
    assert web.place.store.stat(web.place.at("a.dat")) is not None

    def check(request: BaseHTTPRequestHandler) -> Answer | None:
        return None if request.headers.get("Authorization") == "Bearer better" else Answer(401)

    web.proxy.rule = check
    web.file.write_text("better")
    CALLS[call](web.place, source)


def test_a_password_opens_a_webdav_server(tmp_path: Path, source: Path) -> None:
    file = tmp_path / "password"
    file.write_text("open sesame\n")
    with WebdavServer(user="ali", password="open sesame") as server:
        settings = StoreSettings(user="ali", password_file=str(file))
        with place_in(server.folder, server.url, settings) as place:
            place.store.put(str(source), place.at("a.dat"))
            assert place.content() == {"a.dat": b"data"}
        file.write_text("wrong")
        with place_in(server.folder, server.url, settings) as place, pytest.raises(CredentialExpired):
            place.store.stat(place.at("a.dat"))


def test_a_revoked_key_is_told_as_such(tmp_path: Path, source: Path) -> None:
    with SshServer() as server:
        settings = StoreSettings(ssh_config=str(server.configuration()))
        base = f"{server.address.replace('ssh:', 'sftp:')}{tmp_path}/there"
        with place_in(tmp_path / "there", base, settings) as place:
            place.store.put(str(source), place.at("a.dat"))
            allowed = (server.folder / "user.pub").read_text()
            (server.folder / "user.pub").write_text("")
            place.store.close()  # a connection that is open lives on
            for call in CALLS.values():
                with pytest.raises(CredentialExpired) as refused:
                    call(place, source)
                assert refused.value.reason == "credential-expired"
            (server.folder / "user.pub").write_text(allowed)
            assert place.store.stat(place.at("a.dat")) is not None


def test_aliases_and_jumps_of_ssh_hold(ssh_server: SshServer, tmp_path: Path, source: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host far near\n  HostName 127.0.0.1\n  Port {ssh_server.port}\n  User {ssh_server.user}\n"
        f"Host far\n  ProxyJump near\nHost *\n{ssh_server.configuration().read_text()}"
    )
    with place_in(tmp_path / "there", f"sftp://far{tmp_path}/there", StoreSettings(ssh_config=str(config))) as place:
        place.store.put(str(source), place.at("a.dat"))
        assert place.content() == {"a.dat": b"data"}


def test_a_host_with_another_key_is_no_matter_of_credentials(ssh_server: SshServer, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(ssh_server.configuration().read_text().replace("known_hosts", "nowhere"))
    base = f"{ssh_server.address.replace('ssh:', 'sftp:')}{tmp_path}"
    with place_in(tmp_path, base, StoreSettings(ssh_config=str(config))) as place:
        with pytest.raises(StoreError, match="Host key verification failed") as refused:
            place.store.stat(place.at("a.dat"))
        assert not isinstance(refused.value, CredentialExpired | StoreUnreachable)


@pytest.mark.parametrize(
    "status, kind", [(503, StoreUnreachable), (429, StoreUnreachable), (507, StoreFull), (403, AccessDenied)]
)
def test_what_a_web_server_says_has_its_own_error(
    web: Guarded, source: Path, status: int, kind: type[StoreError]
) -> None:
    web.proxy.rule = lambda request: Answer(status) if request.command == "PUT" else None
    with pytest.raises(kind):
        web.place.store.put(str(source), web.place.at("a.dat"))
    assert web.place.content() == {}


def test_a_truncated_answer_is_found(web: Guarded, s3: Guarded) -> None:
    for guarded in (web, s3):
        guarded.place.write("a.dat", b"data" * 1_000_000)
        seen = guarded.place.store.stat(guarded.place.at("a.dat"))
        assert seen is not None
        guarded.proxy.cut_at = 500_000  # obstore goes on by itself, but not for ever
        with pytest.raises(StoreUnreachable):
            list(guarded.place.store.read(guarded.place.at("a.dat"), version=seen.version))
        with pytest.raises(StoreUnreachable):
            guarded.place.store.checksum(guarded.place.at("a.dat"))


def test_a_server_that_knows_no_conditions_is_watched(web: Guarded) -> None:
    check = web.proxy.rule

    def forget(request: BaseHTTPRequestHandler) -> Answer | None:
        del request.headers["If-Match"]
        return check(request)

    web.proxy.rule = forget
    web.place.write("a.dat", b"first")
    seen = web.place.store.stat(web.place.at("a.dat"))
    assert seen is not None
    web.place.write("a.dat", b"another")
    pieces: list[bytes] = []
    with pytest.raises(FileChanged):
        pieces.extend(web.place.store.read(web.place.at("a.dat"), version=seen.version))
    assert pieces == []


def test_a_redirect_is_followed_without_the_token(web: Guarded, webdav_server: WebdavServer, tmp_path: Path) -> None:
    web.place.write("a.dat", b"data")
    with WebProxy(webdav_server.port) as other:
        seen: list[str | None] = []
        other.rule = lambda request: seen.append(request.headers.get("Authorization"))
        check = web.proxy.rule

        def move(request: BaseHTTPRequestHandler) -> Answer | None:
            if request.command in ("GET", "HEAD"):
                return Answer(302, b"", (("Location", f"{other.url}{request.path}"),))
            return check(request)

        web.proxy.rule = move
        assert b"".join(web.place.store.read(web.place.at("a.dat"))) == b"data"
        assert seen == [None]
        web.proxy.rule = lambda _: Answer(302, b"", (("Location", f"{web.proxy.url}/round"),))
        with pytest.raises(StoreError, match="circle"):
            list(web.place.store.read(web.place.at("a.dat"), version='"1"'))
        web.proxy.rule = lambda _: Answer(302, b"", (("Location", "file:///etc/passwd"),))
        with pytest.raises(StoreError, match="another kind"):
            list(web.place.store.read(web.place.at("a.dat"), version='"1"'))


def test_a_plain_web_server_is_read_and_takes_nothing(web: Guarded, source: Path) -> None:
    web.place.write("a.dat", b"data" * 1000)

    def plain(request: BaseHTTPRequestHandler) -> Answer | None:
        if request.command != "GET":
            return Answer(405)
        if "Range" in request.headers:
            del request.headers["Range"]  # it knows no ranges
        return None

    web.proxy.rule = plain
    seen = web.place.store.stat(web.place.at("a.dat"))
    assert seen is not None
    assert seen.size_bytes == 4000
    assert (
        b"".join(web.place.store.read(web.place.at("a.dat"), offset=3990, version=seen.version)) == b"tadatadata"[-10:]
    )
    for call in ("put", "list"):
        with pytest.raises(StoreError, match="only a WebDAV server"):
            CALLS[call](web.place, source)
