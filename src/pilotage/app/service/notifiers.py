"""The notification transports of a service, from its settings and from installed adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pilotage.adapters.notifiers.mail_address import is_address
from pilotage.app.adapter_registry import BUILT_IN, Group, adapter_names, find_adapter
from pilotage.model.errors import PilotageError
from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import Clock, MakesNotifier, Notifier

if TYPE_CHECKING:
    from pilotage.adapters.notifiers.smtp import SmtpNotifier

_GROUP: Group = "pilotage.notifiers"


class Transports(Mapping[str, Notifier]):
    """The transports by name; one of another distribution is made on first use."""

    def __init__(self, settings: NotificationSettings, *, clock: Clock) -> None:
        """Make the built-in ones that the settings enable; raises `BadAddress` for faulty settings."""
        self._settings = settings
        self._clock = clock
        self._made = {name: self._make(name) for name in sorted(BUILT_IN[_GROUP])}

    @property
    def mailer(self) -> SmtpNotifier | None:
        """The sender of digests, if there is a mail server."""
        found: SmtpNotifier | None = self._made["mail"]  # type: ignore[assignment]  # of the built-in factory
        return found

    def __getitem__(self, name: str) -> Notifier:
        if name not in self._made:
            self._made[name] = self._make(name)
        found = self._made[name]
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name in adapter_names(_GROUP) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _make(self, name: str) -> Notifier | None:
        make: MakesNotifier | None = find_adapter(_GROUP, name)
        return make(self._settings, clock=self._clock) if make is not None else None


def owner_addresses(pairs: Iterable[str]) -> Callable[[str], str | None]:
    """A function from owners to mail addresses: as `OWNER=ADDRESS` says, or the owner's name if it looks like one."""
    known: dict[str, str] = {}
    for pair in pairs:
        owner, sign, address = pair.rpartition("=")
        if not sign or not owner or not is_address(address):
            raise PilotageError(
                "this is not an owner with a mail address", subject=pair[:80], expected="OWNER=NAME@DOMAIN"
            )
        known[owner] = address
    return lambda owner: known.get(owner) or (owner if is_address(owner) else None)
