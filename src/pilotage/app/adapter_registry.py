"""Finds adapters by name: built-in ones in a table, those of other distributions by entry points.

Entry points are read only for a name that is not built in: scanning installed packages costs some ten milliseconds.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Literal

from pilotage.model.errors import PilotageError

Group = Literal["pilotage.journals", "pilotage.notifiers", "pilotage.sites", "pilotage.stores"]

BUILT_IN: dict[Group, dict[str, str]] = {
    "pilotage.journals": {
        "postgresql": "pilotage.adapters.journals.postgres.adapter",
        "sqlite": "pilotage.adapters.journals.sqlite.adapter",
    },
    "pilotage.notifiers": {
        "mail": "pilotage.adapters.notifiers.mail:mail_notifier",
        "webhook": "pilotage.adapters.notifiers.webhook:webhook_notifier",
    },
    "pilotage.sites": {
        "local": "pilotage.adapters.sites.local:local_access",
    },
    "pilotage.stores": {
        "file": "pilotage.adapters.stores.folder:folder_store",
        "http": "pilotage.adapters.stores.http.store:http_store",
        "https": "pilotage.adapters.stores.http.store:http_store",
        "s3": "pilotage.adapters.stores.s3:s3_store",
        "sftp": "pilotage.adapters.stores.sftp.store:sftp_store",
    },
}
"""The entry points of this distribution, as `pyproject.toml` lists them."""


class BrokenAdapter(PilotageError):
    """An adapter of another distribution cannot be loaded: repair or remove that distribution."""


def find_adapter(group: Group, name: str) -> Any:
    """The adapter of a name; None if none is installed. Raises `BrokenAdapter`."""
    place = BUILT_IN[group].get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        loaded = import_module(module)
        return getattr(loaded, attribute) if attribute else loaded
    point = _installed(group).get(name)
    if point is None:
        return None
    try:
        return point.load()
    except (ImportError, AttributeError) as fault:
        raise BrokenAdapter(
            f"the adapter cannot be loaded: {fault}",
            subject=f"{name} of {point.dist.name if point.dist is not None else group}",
            next_step="reinstall that distribution, or remove it",
        ) from fault


def adapter_names(group: Group) -> list[str]:
    """The names of all adapters of a group, sorted."""
    return sorted({*BUILT_IN[group], *_installed(group)})


@cache
def _installed(group: Group) -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}
