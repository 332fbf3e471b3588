"""A private certificate authority and the certificate of one service, in the state folder's `tls`, with private keys.

The authority's key never leaves that folder. Clients verify the service with `ca.pem`, which is not secret.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.closed_folders import make_closed
from pilotage.model.errors import PilotageError, part

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"
SERVER_FILE, SERVER_KEY_FILE = "server.pem", "server.key"
CA_DAYS = 3650
SERVER_DAYS = 365
EARLY = dt.timedelta(hours=1)  # another computer's clock may be behind
LOOPBACK = ("localhost", "127.0.0.1", "::1")
NAME_LENGTH_MAX = 253


class TlsError(PilotageError):
    """The authority or the certificate cannot be made or used; the message says which file, and what to do."""


class NewCertificates(msgspec.Struct, frozen=True, kw_only=True):
    """The new certificates: their files, hosts and expiry, and whether the authority is new."""

    ca_file: str
    certificate: str
    hosts: tuple[str, ...]
    expires_at: float
    new_ca: bool


def make_certificates(
    folder: Path, hosts: Sequence[str], *, days: int = SERVER_DAYS, new_ca: bool = False, now: Callable[[], float]
) -> NewCertificates:
    """Make a certificate for the hosts and the loopback names, and an authority if there is none.

    Files are replaced atomically; a running service loads the new certificate by itself. Raises `TlsError`.
    """
    with part(purpose="to make certificates"):
        import cryptography  # noqa: F401 # only to check that it is installed
    names = tuple(dict.fromkeys([*map(_checked, hosts), *LOOPBACK]))
    moment = dt.datetime.fromtimestamp(now(), dt.UTC)
    try:
        make_closed(folder)
        folder.chmod(0o700)
        made_ca = new_ca or not (folder / CA_FILE).exists()
        if made_ca:
            _make_ca(folder, moment)
        expires = _make_server(folder, names, moment, days)
    except OSError as error:
        raise TlsError(
            "cannot write certificates", subject=str(error.filename or folder), got=error.strerror or str(error)
        ) from error
    return NewCertificates(
        ca_file=str(folder / CA_FILE),
        certificate=str(folder / SERVER_FILE),
        hosts=names,
        expires_at=expires.timestamp(),
        new_ca=made_ca,
    )


def expires_at(certificate: Path) -> float:
    """When a certificate expires, in seconds since 1970; raises `OSError` or `ValueError`."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()


def _checked(host: str) -> str:
    name = host.strip().strip("[]").lower()
    if not name or len(name) > NAME_LENGTH_MAX or not name.isascii() or any(each in name for each in " /@,"):
        raise TlsError("not a host name", got=repr(host), expected="a name or an address: pilot.example.org")
    return name


def _make_ca(folder: Path, moment: dt.datetime) -> None:
    from cryptography import x509

    key = _new_key()
    name = _named(f"pilotage authority {secrets.token_hex(4)}")
    until = moment + dt.timedelta(days=CA_DAYS)
    builder = _builder(subject=name, issuer=name, key=key, since=moment, until=until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = _signed(builder.add_extension(identifier, critical=False), key)
    _write(folder / CA_KEY_FILE, _key_bytes(key), 0o600)
    _write(folder / CA_FILE, certificate, 0o644)


def _make_server(folder: Path, names: Sequence[str], moment: dt.datetime, days: int) -> dt.datetime:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca, ca_key = _read_ca(folder)
    key = _new_key()
    # A certificate must not outlive its authority.
    until = min(moment + dt.timedelta(days=days), ca.not_valid_after_utc)
    builder = _builder(subject=_named(names[0][:64]), issuer=ca.subject, key=key, since=moment, until=until)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = _signed(builder.add_extension(authority, critical=False), ca_key)
    _write(folder / SERVER_KEY_FILE, _key_bytes(key), 0o600)
    _write(folder / SERVER_FILE, certificate, 0o644)
    return until


def _read_ca(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_FILE).read_bytes())
        key = load_pem_private_key((folder / CA_KEY_FILE).read_bytes(), password=None)
    except ValueError as error:
        raise _bad_ca(folder, str(error)) from error
    except FileNotFoundError as error:
        raise _bad_ca(folder, f"{error.filename} is missing") from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise _bad_ca(folder, "its key does not match its certificate")
    return certificate, key


def _bad_ca(folder: Path, got: str) -> TlsError:
    return TlsError(
        "the authority cannot be used",
        subject=str(folder / CA_FILE),
        got=got,
        next_step="make another with `pilotage tls init --new-ca`; clients with the old ca.pem need the new one",
    )


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    since: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(min(since, until) - EARLY).not_valid_after(until)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def _key_bytes(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with its mode from the start, so that others can never read it."""
    draft = file.with_name(f".{file.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
