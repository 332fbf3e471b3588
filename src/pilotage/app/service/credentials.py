"""The certificates and signing keys of a state folder."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.adapters.settings.tls import (
    CA_FILE,
    SERVER_DAYS,
    SERVER_FILE,
    SERVER_KEY_FILE,
    NewCertificates,
    TlsError,
    expires_at,
    make_certificates,
)
from pilotage.adapters.settings.tokens import StoredKeys
from pilotage.app.state_folder import TLS_FOLDER, local_user
from pilotage.model.settings.settings import Settings

if TYPE_CHECKING:
    from pilotage.service.http.listener import TlsFiles
    from pilotage.service.tokens import Tokens

__all__ = ["SERVER_DAYS", "NewCertificates", "init_tls", "tls_files"]


def init_tls(
    settings: Settings, hosts: Sequence[str], *, days: int = SERVER_DAYS, new_ca: bool = False
) -> NewCertificates:
    """Make the certificate of this folder's service, and its authority if there is none or a new one is requested.

    By default it is for this computer's own name, and for the addresses that the settings listen on.
    """
    named = [*hosts] or [socket.gethostname()]
    if settings.service.host not in ("", "0.0.0.0", "::"):
        named.append(settings.service.host)
    folder = state_folder(settings, folder=Path.cwd()).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return make_certificates(folder / TLS_FOLDER, named, days=days, new_ca=new_ca, now=time.time)


def tls_files(settings: Settings, state: Path) -> TlsFiles | None:
    """The certificate files of a service with these settings; None if it uses plain HTTP. Raises `TlsError`."""
    service, made = settings.service, state.absolute() / TLS_FOLDER
    if bool(service.tls_certificate) != bool(service.tls_key):
        raise TlsError(
            "a certificate needs its key, and a key its certificate",
            subject="service.tls_certificate, service.tls_key",
            next_step="set both, or neither",
        )
    url = ""
    if service.tls_certificate:
        # Certificates from elsewhere seldom include the loopback.
        url = service.address.rstrip("/") if service.address.startswith("https://") else ""
        certificate, key, ca_file = Path(service.tls_certificate), Path(service.tls_key), service.tls_ca
    elif (made / SERVER_FILE).exists():
        certificate, key, ca_file = made / SERVER_FILE, made / SERVER_KEY_FILE, str(made / CA_FILE)
    else:
        return None
    from pilotage.service.http.listener import TlsFiles

    return TlsFiles(
        certificate=str(certificate.absolute()),
        key=str(key.absolute()),
        ca_file=str(Path(ca_file).absolute()) if ca_file else "",
        url=url,
        expires_at=partial(expires_at, certificate),
    )


# The signing keys of a state folder, and the tokens they sign.

DAY_SECONDS = 86_400.0


def tokens_of(state: Path, settings: Settings) -> Tokens:
    """Issues and recognizes tokens with the keys of a state folder; keys are made when needed.

    A pilot of a site gets `for_pilot(site)`, the agent of a site `for_site_agent(site)`; no service needs to run.
    """
    from pilotage.service.tokens import Tokens

    seconds = settings.service.token_days * DAY_SECONDS
    return Tokens(StoredKeys(state), user=local_user(), clock=time.time, pilot_seconds=seconds)
