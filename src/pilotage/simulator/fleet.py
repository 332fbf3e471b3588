"""All agents of a simulation: where they are started, and where replies to them go."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.model.demand import Capacity
from pilotage.model.exchange import AttemptRef, ExchangeReply
from pilotage.model.site import Site
from pilotage.simulator.agents import Agent
from pilotage.simulator.surroundings import Host, Surroundings


class Fleet:
    """Starts agents and brings replies to those that live."""

    def __init__(self, world: Surroundings) -> None:
        """Take what the agents share."""
        self._world = world
        self._bring, self._bring_all = self._hand_over, self._hand_over_all  # one and the same for all replies

    @property
    def live(self) -> int:
        """How many agents there are."""
        return len(self._world.agents)

    def start(
        self,
        name: str,
        host: Host,
        *,
        request: str,
        site: Site,
        serves: AttemptRef | None = None,
        capacity: Capacity | None = None,
        node: str = "",
    ) -> Agent:
        """Start an agent under a name that no other has had; it has a whole node unless a capacity is given."""
        agent = Agent(
            self._world, host, name=name, request=request, site=site, serves=serves, capacity=capacity, node=node
        )
        agent.start()
        return agent

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Send replies on their way; whoever is gone when its own arrives does not get it."""
        self._world.network.send_all(replies, self._bring, self._bring_all)

    def _hand_over(self, reply: ExchangeReply) -> None:
        agent = self._world.agents.get(reply.pilot)
        if agent is not None:
            agent.receive(reply)

    def _hand_over_all(self, replies: Sequence[ExchangeReply]) -> None:
        agents = self._world.agents
        for reply in replies:
            agent = agents.get(reply.pilot)
            if agent is not None:
                agent.receive(reply)
