"""Runs an index server: an index of records, fed from its storages, that answers queries over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.app.provenance.index import Connect, IndexConfig, index_sources, open_index
from pilotage.model.errors import part

if TYPE_CHECKING:
    from pilotage.service.announcement import Announcement as Announcement  # noqa: PLC0414 # offered on


def serve_index(
    config: IndexConfig,
    *,
    connect: Connect,
    started: Callable[[Announcement], None],
    rebuild: bool = False,
) -> int | None:
    """Keep an index and answer queries until a signal comes, and return the signal."""
    from pilotage.adapters.settings.tokens import ensure_token, token_file
    from pilotage.app.service.credentials import tokens_of
    from pilotage.app.state_folder import local_user, settings_here
    from pilotage.model.version import VERSION
    from pilotage.reading.access import Access, digest_of, local_principal
    from pilotage.service.announcement import Announcement, announced, refuse_second

    with part(purpose="to serve an index over HTTP"):
        from pilotage.service.http.listener import Certificate, Listener, TlsFiles, bind, refuse_plain, url_of
        from pilotage.service.index_server import Feeder, IndexApplication
        from pilotage.service.server import refuse_open_folder

    sources = index_sources(config, connect)
    folder = Path(config.folder).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_open_folder(folder)
    refuse_second(folder)
    with ExitStack() as stack:
        index = open_index(config, folder, rebuild=rebuild)
        stack.callback(index.close)
        for source in sources.values():
            stack.callback(source.close)
        certificate = None
        if config.tls_certificate:
            files = TlsFiles(certificate=config.tls_certificate, key=config.tls_key, expires_at=lambda: float("inf"))
            certificate = Certificate(files)
        bound = stack.enter_context(bind(config.host, config.port))
        if certificate is None:
            refuse_plain(bound)
        access = Access(
            {digest_of(ensure_token(folder)): local_principal(local_user())}, tokens=tokens_of(folder, settings_here())
        )
        feeder = Feeder(index, sources, poll_seconds=config.poll_seconds)
        announcement = Announcement(
            url=url_of(bound, scheme="http" if certificate is None else "https"),
            pid=os.getpid(),
            token_file=str(token_file(folder)),
            version=VERSION,
            started_at=time.time(),
        )

        def announce() -> None:
            stack.enter_context(announced(folder, announcement))
            feeder.start()
            stack.callback(feeder.stop)
            started(announcement)

        application: Any = IndexApplication(index, feeder, name=config.name, access=access)
        listener = Listener(application, bound=bound, started=announce, stopping=lambda: None, certificate=certificate)
        listener.listen()
        return listener.ended_by
