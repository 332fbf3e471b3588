"""Messages to and from the service: they take time, and may get lost, duplicated, delayed or reordered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from pilotage.simulator.world.clock import Handle, Schedule
from pilotage.simulator.world.faults import FaultInjector
from pilotage.simulator.world.randomness import Dice, Distribution, Fixed

Message = TypeVar("Message", bound=msgspec.Struct)
_Held = tuple[Any, Callable[[Any], None], Handle]

DELAY_SECONDS = (1.0, 300.0)
HELD_BACK_SECONDS = (30.0, 600.0)  # how long a message waits at most for the one that overtakes it


class Network:
    """Carries messages as JSON, like the wire; `plain` passes the values themselves, for large benchmarks.

    Without faults and with a constant latency, plain messages arrive in the order in which they are sent.
    """

    def __init__(
        self, schedule: Schedule, injector: FaultInjector, dice: Dice, latency: Distribution, *, plain: bool = False
    ) -> None:
        """Take the clock, the faults and the latency in seconds."""
        self._schedule = schedule
        self._injector = injector
        self._latency = latency
        self._fixed_seconds = latency.value if isinstance(latency, Fixed) else None
        self._numbers = dice.stream("network")
        self._plain = plain
        self._in_order = plain and injector.quiet and self._fixed_seconds is not None
        self._encode = msgspec.json.Encoder().encode
        self._decoders: dict[type, msgspec.json.Decoder[Any]] = {}
        self._held: dict[tuple[type, str], _Held] = {}

    def send(
        self, message: Message, deliver: Callable[[Message], None], *, loses: bool = True, doubles: bool = True
    ) -> None:
        """Carry a message to `deliver`, which gets an equal value.

        Some are never lost, because their sender would repeat them until they arrive, and some are never duplicated, because sending
        them twice means something else.
        """
        if self._in_order and (seconds := self._fixed_seconds) is not None:
            self._schedule.post_in_order(self._schedule.now + seconds, deliver, message)
            return
        arrived = message if self._plain else self._carried(message)
        if self._injector.quiet and not self._held:
            seconds = self._fixed_seconds
            if seconds is None:
                seconds = self._latency.draw(self._numbers)
            self._schedule.post(self._schedule.now + seconds, deliver, arrived)
        else:
            self._send_badly(arrived, deliver, loses=loses, doubles=doubles)

    def send_all(
        self,
        messages: Sequence[Message],
        deliver: Callable[[Message], None],
        deliver_all: Callable[[Sequence[Message]], None],
    ) -> None:
        """Carry several messages one after the other; to `deliver_all` if they arrive together."""
        if not self._in_order or (seconds := self._fixed_seconds) is None:
            for message in messages:
                self.send(message, deliver)
        elif messages:
            self._schedule.post_in_order(self._schedule.now + seconds, deliver_all, messages)

    def _carried(self, message: Message) -> Message:
        kind = type(message)
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        carried: Message = decoder.decode(self._encode(message))
        return carried

    def _send_badly(self, message: Message, deliver: Callable[[Message], None], *, loses: bool, doubles: bool) -> None:
        injector, schedule = self._injector, self._schedule
        if loses and injector.strikes("message_lost"):
            return
        seconds = self._latency.draw(self._numbers)
        if injector.strikes("message_delayed"):
            seconds += injector.between("message_delayed", low=DELAY_SECONDS[0], high=DELAY_SECONDS[1])
        if doubles and injector.strikes("message_duplicated"):
            again = injector.between("message_duplicated", low=0.0, high=DELAY_SECONDS[1])
            schedule.after(seconds + again, deliver, message)
        link = (type(message), str(getattr(message, "pilot", "")))
        overtaken = self._held.pop(link, None)
        if overtaken is None and injector.strikes("message_reordered"):
            longest = injector.between("message_reordered", low=HELD_BACK_SECONDS[0], high=HELD_BACK_SECONDS[1])
            self._held[link] = (message, deliver, schedule.after(longest, self._release, link))
            return
        schedule.after(seconds, deliver, message)
        if overtaken is not None:
            earlier, deliver_earlier, patience = overtaken
            patience.cancel()
            schedule.after(seconds + self._latency.draw(self._numbers), deliver_earlier, earlier)

    def _release(self, link: tuple[type, str]) -> None:
        message, deliver, _ = self._held.pop(link)
        self._injector.had_no_effect("message_reordered")  # no message came that could have overtaken it
        deliver(message)
