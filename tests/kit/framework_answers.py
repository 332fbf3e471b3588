"""The HTTP side of a service that leaves every answer to the framework, to be compared with what is answered without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotage.service.http.dispatcher import Dispatcher
from pilotage.service.http.framework import make_app
from pilotage.service.http.routing import Route
from pilotage.service.http.services import Services


class FrameworkAnswers(Dispatcher):
    """Lets requests in as every dispatcher does, and takes none of them for a plain one."""

    def __init__(self, services: Services) -> None:
        super().__init__(services, make_framework=lambda: make_app(services))

    def _plain_arguments(self, route: Route, scope: Any, in_path: Mapping[str, str]) -> dict[str, Any] | None:
        return None
