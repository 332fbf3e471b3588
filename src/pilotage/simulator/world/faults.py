"""Injected faults: one probability for each kind, and the injector that decides when each strikes.

The unit of a probability is stated beside it. The affected component draws how long or how far a fault reaches.
"""

from __future__ import annotations

import msgspec

from pilotage.simulator.world.randomness import Dice


class Faults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The probability of each kind of fault."""

    message_lost: float = 0.0  # of each message
    message_duplicated: float = 0.0
    message_delayed: float = 0.0
    message_reordered: float = 0.0
    agent_killed: float = 0.0  # of each exchange of an agent: it dies within two intervals
    agent_paused: float = 0.0  # likewise: it stands still for up to ten minutes
    agent_rogue: float = 0.0  # of each exchange of an agent: the next one has a forged event
    clock_skewed: float = 0.0  # of each agent, for its life
    service_crashed: float = 0.0  # of each point where it can die: around a step, a write, and each message after it
    tail_torn: float = 0.0  # of each crash with unwritten events
    service_clock_set: float = 0.0  # of each step of the service: its clock was set before, by up to two hours
    batch_unreachable: float = 0.0  # of each listing
    batch_forgets: float = 0.0  # of each submission
    batch_reuses_id: float = 0.0
    batch_starts_twice: float = 0.0  # of each start
    disk_full: float = 0.0  # of each staging at a node
    journal_full: float = 0.0  # of each sync of the journal
    input_vanishes: float = 0.0  # of each read
    site_down: float = 0.0  # of each listing
    black_hole: float = 0.0  # of each listing
    package_loops: float = 0.0  # of each package, even after faults have stopped: most of its attempts loop
    package_kills: float = 0.0  # likewise: most of its attempts kill their agent
    user_kills: float = 0.0  # of each opportunity of a user
    user_holds: float = 0.0
    user_drops: float = 0.0
    user_restores: float = 0.0
    user_restarts: float = 0.0
    user_reschedules: float = 0.0
    user_replicates: float = 0.0
    user_clears: float = 0.0  # of each end of a package: the whole job is cleared a while later, if it is over by then
    user_revives: float = 0.0  # of each cleared job: something of it is restarted
    user_rambles: float = 0.0  # of each operation with a message: the message is far too long
    user_pins: float = 0.0  # of each file that arrived in a cache: it is pinned, and unpinned later
    user_purges: float = 0.0  # of each file that arrived in a cache: it is purged a while later
    transfer_fails: float = 0.0  # of each transfer
    transfer_hangs: float = 0.0  # of each transfer: it ends after its timeout
    transfer_late: float = 0.0  # of each report of a transfer: it comes up to half an hour late
    transfer_repeated: float = 0.0  # of each report of a transfer: it comes twice
    cache_loses: float = 0.0  # of each file that arrived in a cache: it vanishes from it
    store_changes: float = 0.0  # of each fetch: the store has another content from then on


KINDS: tuple[str, ...] = Faults.__struct_fields__
"""Every kind of fault, by the name of its probability."""
FILE_KINDS: tuple[str, ...] = KINDS[KINDS.index("user_pins") :]
"""Those that strike only where a world has stores."""


class FaultInjector:
    """Decides when faults strike, each kind from its own random stream, and counts them.

    `tried` counts how often each kind struck, `fired` how often it had an effect: a component without an effect calls `had_no_effect`,
    and one that cannot know yet calls `had_no_effect` first and `had_effect` later.
    """

    __slots__ = ("_probabilities", "dice", "faults", "fired", "quiet", "tried")

    def __init__(self, faults: Faults, dice: Dice) -> None:
        """Take the probabilities and the random streams."""
        self.faults = faults
        self.dice = dice
        self._probabilities: dict[str, float] = {kind: getattr(faults, kind) for kind in KINDS}
        self.tried: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.fired: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.quiet = not any(self._probabilities.values())  # no fault will ever strike: a shortcut for frequent callers

    def strikes(self, kind: str) -> bool:
        """Whether this kind of fault strikes now."""
        probability = self._probabilities[kind]
        if probability <= 0.0 or self.dice.stream(f"fault/{kind}").random() >= probability:
            return False
        self.tried[kind] += 1
        self.fired[kind] += 1
        return True

    def count(self, kind: str) -> None:
        """Count a fault with an effect that was not drawn here, but in the behaviour of packages."""
        self.tried[kind] += 1
        self.fired[kind] += 1

    def had_no_effect(self, kind: str) -> None:
        """The last strike of this kind had no effect, or none yet."""
        self.fired[kind] -= 1

    def had_effect(self, kind: str) -> None:
        """The last strike had an effect after all."""
        self.fired[kind] += 1

    def between(self, kind: str, *, low: float, high: float) -> float:
        """The extent of a fault, drawn separately from whether it strikes."""
        return low + (high - low) * self.dice.stream(f"fault/{kind}/reach").random()

    def stop(self) -> None:
        """Stop all faults."""
        self._probabilities = dict.fromkeys(KINDS, 0.0)
        self.quiet = True
