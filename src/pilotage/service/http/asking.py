"""What a handler is given: the request of somebody who is known, and what the service has."""

from __future__ import annotations

from litestar import Request
from litestar.datastructures import State
from litestar.di import NamedDependency

from pilotage.service.access import Principal
from pilotage.service.http.services import Services

Ask = Request[Principal, None, State]
"""A request of somebody who is known."""

Book = NamedDependency[Services]
"""The services, as a handler asks for them."""
