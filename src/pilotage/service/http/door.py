"""What stands at the sockets of a service that runs jobs: agents are answered before everybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pilotage.service.http.agents import AgentDoor
from pilotage.service.http.late import late_app
from pilotage.service.http.services import Services, running_of

if TYPE_CHECKING:
    from litestar.types import ASGIApp


def make_door(services: Services) -> tuple[ASGIApp, Callable[[], None]]:
    """What answers requests where jobs are run, agents before the rest; and what lets go of all who wait."""
    door = AgentDoor(late_app(services), services, running_of(services))

    def let_go() -> None:
        services.bell.stop()
        door.stop()

    return door, let_go
