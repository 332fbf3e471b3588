"""What a batch tells of pilots, nodes and sites: loaded, joined and given back as the rows of jobs are."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.book import facts
from pilotage.book.codec import Checked
from pilotage.book.ledger import Changes, Ledger
from pilotage.book.rows import Keys, NodeRow, PilotRow, SiteRow, StoredKey, keys_of, with_keys
from pilotage.book.site_facts import on_site
from pilotage.model import payloads
from pilotage.model.events import Event


class Elsewhere:
    """The rows of pilots, nodes and sites that a batch touches."""

    def __init__(self, ledger: Ledger, others: Sequence[Checked]) -> None:
        """Load what events are about that are about no package, or tell of a computer too."""
        pilots = {one.event.pilot for one in others if one.event.pilot is not None}
        sites = {one.event.site for one in others if one.event.site is not None}
        nodes = {one.data.node for one in others if isinstance(one.data, payloads.NodeDescribed)}
        self._pilots: dict[str, tuple[PilotRow, Keys]] = {}
        self._nodes: dict[str, tuple[NodeRow, Keys]] = {}
        self._sites: dict[str, tuple[SiteRow, Keys]] = {}
        if pilots:
            self._pilots = {row.pilot: (row, keys_of(row)) for row in ledger.pilots(pilots)}
        if sites:
            self._sites = {row.site: (row, keys_of(row)) for row in ledger.sites(sites)}
        if nodes:
            self._nodes = {row.node: (row, keys_of(row)) for row in ledger.nodes(nodes)}

    def on_other(self, kind: str, event: Event, data: payloads.Payload, key: StoredKey) -> None:
        """An event that is about no job."""
        if kind == "pilot":
            assert event.pilot is not None
            known = self._pilots.get(event.pilot)
            if known is None:
                known = self._pilots[event.pilot] = (PilotRow(pilot=event.pilot), {})
            pilot, keys = known
            if event.time > pilot.updated_at:
                pilot.updated_at = event.time
            facts.on_pilot(pilot, keys, key, event, data)
        elif kind == "site":
            assert event.site is not None
            site, keys = self._sites.setdefault(event.site, (SiteRow(site=event.site), {}))
            on_site(site, keys, key, event, data)
        if isinstance(data, payloads.NodeDescribed):
            self.on_node(event, key, data)

    def on_node(self, event: Event, key: StoredKey, data: payloads.NodeDescribed) -> None:
        """A computer described itself, whatever else the event is about."""
        row, keys = self._nodes.setdefault(data.node, (NodeRow(node=data.node), {}))
        row.updated_at = max(row.updated_at, event.time)
        facts.on_node_described(row, keys, key, event, data)

    def tell(self, changes: Changes) -> None:
        """Put the rows among those to be written."""
        changes.pilots = [with_keys(row, keys) for row, keys in self._pilots.values()]
        changes.nodes = [with_keys(row, keys) for row, keys in self._nodes.values()]
        changes.sites = [with_keys(row, keys) for row, keys in self._sites.values()]
