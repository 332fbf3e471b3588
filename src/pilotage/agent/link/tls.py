"""TLS to a service: which certificates are trusted, and a plain reason if one is not.

A CA file pins the service: certificates of other authorities are rejected, however well known. Without a CA file the
authorities of this computer decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    import ssl

CA_FILE_VARIABLE = "PILOTAGE_CA_FILE"

_EXPIRED, _NOT_YET = 10, 9  # error numbers of OpenSSL
_WRONG_HOST = (62, 64)
_STRANGERS = (2, 18, 19, 20, 21)


class NotTrusted(OSError):
    """The certificate of the service is not trusted; the message says why, and what to do. Nothing was sent."""


def client_context(ca_file: str = "") -> ssl.SSLContext:
    """A context for TLS 1.2 or later that checks the certificate and the host name. Raises `NotTrusted`."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise NotTrusted(f"the CA file {ca_file} cannot be used: {_plain(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def secured(plain: socket.socket, host: str, *, ca_file: str = "") -> ssl.SSLSocket:
    """Start TLS on a connected socket; raises `NotTrusted`, or `OSError` if the other side does not speak TLS."""
    import ssl

    context = client_context(ca_file)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLError as error:
        raise NotTrusted(why_not_trusted(error, host, ca_file=ca_file)) from error


def why_not_trusted(error: ssl.SSLError, host: str, *, ca_file: str = "") -> str:
    """Why TLS failed, in plain words."""
    code = getattr(error, "verify_code", 0)
    if code == _EXPIRED:
        return "its certificate has expired; its operator makes a new one with `pilotage tls init`"
    if code == _NOT_YET:
        return "its certificate is not valid yet: one of the two clocks is wrong"
    if code in _WRONG_HOST:
        return f"its certificate is not for {host}; its operator adds the name with `pilotage tls init --host {host}`"
    if code in _STRANGERS:
        if ca_file:
            return f"its certificate is not from the authority in {ca_file}: another service, or one with a new CA"
        return f"its certificate is from an unknown authority; name its ca.pem with --ca-file or {CA_FILE_VARIABLE}"
    if code:
        return f"its certificate is not valid: {getattr(error, 'verify_message', '') or _plain(error)}"
    if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
        return "the server there does not speak TLS; use http://"
    return f"TLS failed: {_plain(error)}"


def _plain(error: BaseException) -> str:
    return str(getattr(error, "reason", "") or getattr(error, "strerror", "") or error)
