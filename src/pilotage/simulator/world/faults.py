"""What goes wrong on purpose: one probability for each kind of fault, and the box that decides when each strikes.

What a probability is taken over is said beside it. How long or how far a fault reaches is drawn by whoever has it.
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
    agent_killed: float = 0.0  # of each exchange an agent opens: it dies within two intervals
    agent_paused: float = 0.0  # likewise: nothing of it moves for up to ten minutes
    agent_rogue: float = 0.0  # of each exchange an agent opens: the next says something that it should not
    clock_skewed: float = 0.0  # of each agent, for its life
    service_crashed: float = 0.0  # of each point where it can die: around a step, a write, and whatever leaves after it
    tail_torn: float = 0.0  # of each crash that finds something unwritten
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
    package_loops: float = 0.0  # of each package, also after all else has stopped: most of its attempts do
    package_kills: float = 0.0  # likewise: most of its attempts take their agent along
    user_kills: float = 0.0  # of each chance a user has
    user_holds: float = 0.0
    user_drops: float = 0.0
    user_restores: float = 0.0
    user_restarts: float = 0.0
    user_reschedules: float = 0.0
    user_replicates: float = 0.0
    user_clears: float = 0.0  # of each end of a package: the whole job is cleared a while later, if it is over by then
    user_revives: float = 0.0  # of each job that was cleared: something of it is restarted
    user_rambles: float = 0.0  # of each of these that takes a message: it is longer than anybody wants to read


KINDS: tuple[str, ...] = Faults.__struct_fields__
"""Every kind of fault, by the name of its probability."""


class FaultBox:
    """Says when a fault strikes, each kind from a stream of its own, and counts.

    `tried` is how often each kind struck. `fired` is how often something came of it: whoever finds that nothing did
    says `missed`, and whoever cannot know yet says `missed` first and `took` later.
    """

    __slots__ = ("_probabilities", "dice", "faults", "fired", "quiet", "tried")

    def __init__(self, faults: Faults, dice: Dice) -> None:
        """Take the probabilities and the chance."""
        self.faults = faults
        self.dice = dice
        self._probabilities: dict[str, float] = {kind: getattr(faults, kind) for kind in KINDS}
        self.tried: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.fired: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.quiet = not any(self._probabilities.values())  # nothing will ever strike: who is in a hurry need not ask

    def strikes(self, kind: str) -> bool:
        """Whether this kind of fault strikes here and now."""
        probability = self._probabilities[kind]
        if probability <= 0.0 or self.dice.stream(f"fault/{kind}").random() >= probability:
            return False
        self.tried[kind] += 1
        self.fired[kind] += 1
        return True

    def count(self, kind: str) -> None:
        """Something came of a fault that nobody need ask for: it is in the nature of things."""
        self.tried[kind] += 1
        self.fired[kind] += 1

    def missed(self, kind: str) -> None:
        """Nothing came of the last time that this kind struck, or nothing yet."""
        self.fired[kind] -= 1

    def took(self, kind: str) -> None:
        """Something came of it after all."""
        self.fired[kind] += 1

    def between(self, kind: str, *, low: float, high: float) -> float:
        """How long, or how far: drawn apart from whether."""
        return low + (high - low) * self.dice.stream(f"fault/{kind}/reach").random()

    def stop(self) -> None:
        """From now on nothing strikes."""
        self._probabilities = dict.fromkeys(KINDS, 0.0)
        self.quiet = True
