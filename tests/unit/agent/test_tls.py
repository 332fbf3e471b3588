"""Certificates of a service: made, shown, believed by those who pin them, refused by all others, and replaced while it runs."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from pilotage.adapters.settings.tls import SERVER_FILE, NewCertificates, TlsError, expires_at, make_certificates
from pilotage.agent.delivery.courier import Courier
from pilotage.agent.delivery.spool import Spool
from pilotage.agent.link.connect import announced, connect
from pilotage.agent.link.http import Connection, Unreachable
from pilotage.agent.link.link import CONNECT_SECONDS, Link
from pilotage.agent.link.tls import NotTrusted, client_context
from pilotage.app.service.credentials import tls_files
from pilotage.client.errors import CertificateRefused
from pilotage.client.finding import StateFolder, address_in, find_addresses
from pilotage.client.server import Server
from pilotage.model.settings.settings import ServiceSettings, Settings
from pilotage.service.http.listener import Certificate, CertificateError, Listener, TlsFiles, bind, bind_local, url_of
from tests.kit.command_line import in_an_empty_folder, run

WAIT_SECONDS = 60.0
DAY_SECONDS = 86_400.0


def made(folder: Path, *hosts: str, days: int = 365, new_ca: bool = False, now: float | None = None) -> NewCertificates:
    return make_certificates(folder, hosts, days=days, new_ca=new_ca, now=lambda: time.time() if now is None else now)


def files_of(folder: Path) -> TlsFiles:
    return TlsFiles(
        certificate=str(folder / "server.pem"),
        key=str(folder / "server.key"),
        ca_file=str(folder / "ca.pem"),
        expires_at=lambda: expires_at(folder / "server.pem"),
    )


async def _says_ok(scope: Any, receive: Any, send: Any) -> None:
    """An application: it tells by which scheme it was asked."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        continue
    body = json.dumps({"scheme": scope["scheme"], "position": 1, "stored": 0}).encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(certificate: Certificate, unix: Path | None = None) -> Iterator[str]:
    """Something that answers over TLS, and plainly on a socket file."""
    bound = bind("127.0.0.1", 0)
    beside = [bind_local(unix)] if unix is not None else []
    started = threading.Event()
    listener = Listener(
        _says_ok, bound=bound, beside=beside, started=started.set, stopping=lambda: None, certificate=certificate
    )
    thread = threading.Thread(target=listener.listen)
    thread.start()
    try:
        assert started.wait(WAIT_SECONDS)
        yield url_of(bound, scheme="https")
    finally:
        listener.should_exit = True
        thread.join()
        for each in (bound, *beside):
            each.close()


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    made(folder, "node.example.org")
    return folder


# --- making ---


def test_keys_are_for_their_owner_alone_and_the_certificate_for_all_names(tls: Path) -> None:
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tls.iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.key": 0o600, "server.pem": 0o644}
    assert stat.S_IMODE(tls.stat().st_mode) == 0o700
    again = made(tls, "Other.example.org", "10.1.2.3")
    assert again.hosts == ("other.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1")


def test_a_second_certificate_is_of_the_same_authority_unless_another_is_wanted(tls: Path) -> None:
    ca, server = (tls / "ca.pem").read_bytes(), (tls / "server.pem").read_bytes()
    assert not made(tls).new_ca
    assert ((tls / "ca.pem").read_bytes() == ca, (tls / "server.pem").read_bytes() == server) == (True, False)
    assert made(tls, new_ca=True).new_ca
    assert (tls / "ca.pem").read_bytes() != ca


def test_no_certificate_outlives_its_authority(tls: Path) -> None:
    late = made(tls, days=3650, now=time.time() + 3000 * DAY_SECONDS)
    assert late.expires_at == pytest.approx(time.time() + 3650 * DAY_SECONDS, abs=3600)


def test_an_authority_without_its_key_is_told_with_the_way_out(tls: Path) -> None:
    (tls / "ca.key").unlink()
    with pytest.raises(TlsError, match="--new-ca"):
        made(tls)


def test_a_folder_that_cannot_be_written_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("a file where the folder should be")
    with pytest.raises(TlsError, match=r"cannot write certificates") as caught:
        made(tmp_path / "tls")
    assert (caught.value.subject, caught.value.got) == (str(tmp_path / "tls"), "File exists")


@pytest.mark.parametrize("host", ["", "a b", "https://x", "x" * 300, "ü.example"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(TlsError, match="not a host name"):
        made(tmp_path / "tls", host)


def test_the_command_makes_them_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)
    told = json.loads(run("tls", "init", "--host", "a.example", "--days", "10", "--json").stdout)
    assert told["hosts"][0] == "a.example"
    assert told["expires_at"] == pytest.approx(time.time() + 10 * DAY_SECONDS, abs=60)
    assert told["ca_file"] == str(tmp_path / ".pilotage/tls/ca.pem")
    assert "the same authority" in run("tls", "init").stdout


def test_settings_name_a_certificate_or_the_folders_own_is_used(tmp_path: Path) -> None:
    assert tls_files(Settings(), tmp_path) is None
    made(tmp_path / "tls")
    found = tls_files(Settings(), tmp_path)
    assert found is not None
    assert (found.ca_file, found.expires_at() > time.time()) == (str(tmp_path / "tls/ca.pem"), True)
    named = Settings(service=ServiceSettings(tls_certificate="/c.pem", tls_key="/k.pem"))
    other = tls_files(named, tmp_path)
    assert other is not None
    assert (other.certificate, other.ca_file, other.url) == ("/c.pem", "", "")
    there = msgspec.structs.replace(named.service, address="https://pilot.example.org:8642/", tls_ca="/ca.pem")
    third = tls_files(Settings(service=there), tmp_path)
    assert third is not None
    assert (third.ca_file, third.url) == ("/ca.pem", "https://pilot.example.org:8642")
    with pytest.raises(TlsError, match="key"):
        tls_files(Settings(service=ServiceSettings(tls_key="/k.pem")), tmp_path)


# --- believing ---


def test_who_pins_the_authority_is_answered_and_the_socket_file_stays_plain(tls: Path, tmp_path: Path) -> None:
    unix, ca_file = tmp_path / "agent.sock", str(tls / "ca.pem")
    with served(Certificate(files_of(tls)), unix) as url:
        with Server(url, ca_file=ca_file) as server:
            assert server.get("/v1/position")["scheme"] == "https"
        link = Link(url, ca_file=ca_file)
        for _ in range(3):  # what TLS itself has to say comes in between, and is no answer
            link.send("POST", "/agent/exchange", b"x" * 100_000)
            assert json.loads(link.wait(WAIT_SECONDS).body)["scheme"] == "https"
        link.close()
        plain = Link(f"unix:{unix}")
        plain.send("GET", "/")
        assert json.loads(plain.wait(WAIT_SECONDS).body)["scheme"] == "http"
        plain.close()


def test_what_tls_itself_has_to_say_holds_nobody_up(tls: Path) -> None:
    with served(Certificate(files_of(tls))) as url:
        link = Link(url, ca_file=str(tls / "ca.pem"))
        poll = select.poll()
        poll.register(link.fileno(), select.POLLIN)
        assert poll.poll(WAIT_SECONDS * 1000.0)  # tickets for later sessions come unasked
        began = time.monotonic()
        assert link.receive() is None
        assert time.monotonic() - began < CONNECT_SECONDS / 2
        link.close()


def test_an_old_version_of_tls_is_refused(tls: Path) -> None:
    chosen = client_context(str(tls / "ca.pem"))
    chosen.set_ciphers("ALL:@SECLEVEL=0")
    with served(Certificate(files_of(tls))) as url:
        chosen.maximum_version = ssl.TLSVersion.TLSv1_2
        with _spoken(url, chosen) as secure:
            assert secure.version() == "TLSv1.2"
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            chosen.minimum_version = chosen.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError, match=r"(?i)eof|protocol version"), _spoken(url, chosen):
            pytest.fail("it speaks TLS 1.1")


@contextmanager
def _spoken(url: str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(_place(url)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        yield secure


def _place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("https://").rpartition(":")
    return host, int(port)


def test_another_authority_is_refused_by_everybody_in_plain_words(tls: Path, tmp_path: Path) -> None:
    made(tmp_path / "other")
    wrong = str(tmp_path / "other/ca.pem")
    with served(Certificate(files_of(tls))) as url:
        with pytest.raises(CertificateRefused, match=f"not from the authority in {wrong}") as refused:
            Server(url, ca_file=wrong).get("/v1/position")
        assert not refused.value.retryable
        with pytest.raises(NotTrusted, match="not from the authority"):
            Link(url, ca_file=wrong)
        with pytest.raises(Unreachable, match="not from the authority"):
            Connection(url, ca_file=wrong).post("/v1/events", b"{}", token="")
        with pytest.raises(CertificateRefused, match="PILOTAGE_CA_FILE"):
            Server(url).get("/v1/position")


def test_a_certificate_of_yesterday_is_refused_as_one(tls: Path) -> None:
    made(tls, days=1, now=time.time() - 2 * DAY_SECONDS)
    with served(Certificate(files_of(tls))) as url, pytest.raises(CertificateRefused, match=r"expired.*tls init"):
        Server(url, ca_file=str(tls / "ca.pem")).get("/v1/position")


def test_a_certificate_for_other_names_is_refused_with_the_name_that_is_missing(tls: Path) -> None:
    with served(Certificate(files_of(tls))) as url:
        place = url.replace("127.0.0.1", "127.0.0.2")
        bound = socket.create_server(("127.0.0.2", _place(url)[1]))
        threading.Thread(target=_forward, args=(bound, _place(url)), daemon=True).start()
        with pytest.raises(CertificateRefused, match=r"not for 127\.0\.0\.2.*--host 127\.0\.0\.2"):
            Server(place, ca_file=str(tls / "ca.pem")).get("/v1/position")
        bound.close()


def _forward(bound: socket.socket, to: tuple[str, int]) -> None:
    here, _ = bound.accept()
    with contextlib.suppress(OSError), here, socket.create_connection(to) as there:
        while piece := here.recv(65_536):
            there.sendall(piece)
            answer = there.recv(65_536)
            here.sendall(answer)


def test_what_does_not_speak_tls_is_told_as_such(tls: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:

        def answer() -> None:
            connection, _ = bound.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotTrusted, match="does not speak TLS"):
            Link(f"https://127.0.0.1:{bound.getsockname()[1]}", ca_file=str(tls / "ca.pem"))
        thread.join()


def test_a_ca_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotTrusted, match=r"nowhere\.pem"):
        client_context(str(tmp_path / "nowhere.pem"))
    with pytest.raises(CertificateRefused, match=r"https://127\.0\.0\.1: the CA file .*nowhere\.pem cannot be used"):
        Server("https://127.0.0.1", ca_file=str(tmp_path / "nowhere.pem")).get("/v1/position")


# --- finding ---


def test_the_announcement_tells_clients_and_agents_whom_to_believe(tls: Path, tmp_path: Path) -> None:
    with served(Certificate(files_of(tls))) as url:
        told = {"url": url, "token_file": "", "ca_file": str(tls / "ca.pem")}
        (tmp_path / "service.json").write_text(json.dumps(told))
        assert announced(str(tmp_path / "service.json")) == (url, str(tls / "ca.pem"))
        link = connect(f"unix:{tmp_path}/gone.sock", announcement=str(tmp_path / "service.json"))
        assert link.address == url
        link.close()
        found = address_in(tmp_path)
        assert found is not None
        assert found.ca_file == str(tls / "ca.pem")


def test_what_is_said_goes_before_the_environment_and_that_before_the_folder(tmp_path: Path) -> None:
    told = {"url": "https://127.0.0.1:9", "ca_file": "/of/the/folder"}
    (tmp_path / "service.json").write_text(json.dumps(told))
    folders = [StateFolder(path=tmp_path, usual_url="")]

    def found(ca_file: str = "", **environment: str) -> str:
        return find_addresses([], ca_file=ca_file, environment=environment, state_folders=folders)[0].ca_file

    assert found() == "/of/the/folder"
    assert found(PILOTAGE_CA_FILE="/of/the/environment") == "/of/the/environment"
    assert found("/said", PILOTAGE_CA_FILE="/of/the/environment") == "/said"


def test_a_courier_that_does_not_believe_a_server_keeps_what_waits(tls: Path, tmp_path: Path) -> None:
    with served(Certificate(files_of(tls))) as url:
        queue = Spool(tmp_path / "spool").queue(url)
        stream = queue.stream("client")
        stream.append(b'"type":"Noted","time":1.0,"data":{"text":"x"}}', seen=0)
        stream.close()
        courier = Courier(queue, connection=Connection(url))
        assert "an unknown authority" in courier.drain_once().problem
        courier.close()
        assert queue.pending() == 1


# --- replacing ---


def test_a_replaced_certificate_is_taken_while_it_runs_and_half_a_one_is_not(tls: Path) -> None:
    said: list[str] = []
    certificate = Certificate(files_of(tls), warn=said.append)
    before = (tls / "server.key").read_bytes()
    with served(certificate) as url:
        first = _shown(url, tls)
        made(tls)
        (tls / "server.key").replace(tls / "new.key")
        (tls / "server.key").write_bytes(before)
        certificate.look()
        assert "not loaded" in said[0]
        assert _shown(url, tls) == first
        (tls / "new.key").replace(tls / "server.key")
        certificate.look()
        assert len(said) == 1
        assert _shown(url, tls) != first


def _shown(url: str, tls: Path) -> bytes | None:
    with _spoken(url, client_context(str(tls / "ca.pem"))) as secure:
        return secure.getpeercert(binary_form=True)


def test_thirty_days_before_its_end_and_each_day_it_is_warned(tls: Path) -> None:
    said: list[str] = []
    now = time.time()
    clock = [now]
    certificate = Certificate(files_of(tls), clock=lambda: clock[0], warn=said.append)
    for days in (0.0, 330.0, 336.0, 336.5, 337.5, 366.0):
        clock[0] = now + days * DAY_SECONDS
        certificate.look()
    assert [text.partition("server.pem ")[2].partition(";")[0] for text in said] == [
        "expires in 28 days",
        "expires in 27 days",
        "has expired",
    ]


def test_a_certificate_with_the_key_of_another_is_refused_at_the_start(tls: Path, tmp_path: Path) -> None:
    made(tmp_path / "other")
    (tmp_path / "other/server.key").replace(tls / "server.key")
    with pytest.raises(CertificateError, match=r"key values mismatch.*\n.*tls init"):
        Certificate(files_of(tls))


def test_the_certificate_of_a_service_is_for_a_server_and_signs_no_other(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], now=time.time)
    certificate = x509.load_pem_x509_certificate((tmp_path / SERVER_FILE).read_bytes())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.value.ca, constraints.critical) == (False, True)
    assert not certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert (usage.value.key_cert_sign, usage.critical) == (False, True)
    assert not certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).critical
    assert not certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).critical
