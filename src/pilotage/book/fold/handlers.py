"""The table of fold functions: one row per event type, grouped by subject and by whether the epoch matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.fold import facts
from pilotage.book.fold.cached_files import CachedFileRows
from pilotage.book.rows.ledger import Changes, Ledger
from pilotage.book.rows.registers import Register, takes
from pilotage.book.rows.rows import (
    INCIDENTS,
    Keys,
    KnowledgeRow,
    NodeRow,
    PilotRow,
    SiteRow,
    StoredKey,
    keys_of,
    with_keys,
)
from pilotage.model.events import file_payloads, healing_payloads, payloads
from pilotage.model.events.events import Event

ATTEMPT_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    payloads.AttemptCreated: facts.on_attempt_created,
    payloads.AttemptQueued: facts.on_attempt_queued,
    payloads.AttemptStarted: facts.on_attempt_started,
    payloads.AttemptSuspected: facts.on_attempt_suspected,
    payloads.AttemptRecovered: facts.on_attempt_recovered,
    payloads.AttemptLost: facts.on_attempt_lost,
    payloads.PhaseEntered: facts.on_phase_entered,
    payloads.OutputsStaged: facts.on_outputs_staged,
    payloads.AttemptFinished: facts.on_attempt_finished,
    payloads.CommitGranted: facts.on_commit_granted,
    file_payloads.OutputsStored: facts.on_outputs_stored,
    file_payloads.OutputsDisposed: facts.on_outputs_disposed,
}
PACKAGE_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    # These count in their epoch only.
    payloads.Bound: facts.on_bound,
    payloads.Unbound: facts.on_unbound,
    payloads.CancelAccepted: facts.on_cancel_accepted,
    payloads.Aborted: facts.on_aborted,
    payloads.Cleared: facts.on_cleared,
    payloads.Restarted: facts.on_restarted,
    payloads.ReplicaWanted: facts.on_replica_wanted,
}
ANY_EPOCH_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    # These hold whatever the epoch.
    payloads.PackageRegistered: facts.on_package_registered,
    payloads.Held: facts.on_held,
    payloads.Released: facts.on_held,
    payloads.Dropped: facts.on_dropped,
    payloads.Restored: facts.on_dropped,
}
JOB_EPOCH_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    payloads.CancelAccepted: facts.on_job_cancelled,
    payloads.Aborted: facts.on_job_aborted,
    payloads.Cleared: facts.on_job_cleared,
    payloads.Restarted: facts.on_job_restarted,
}
JOB_HANDLERS: dict[type[payloads.Payload], Callable[..., None]] = {
    payloads.JobRegistered: facts.on_job_registered,
    payloads.JobAccepted: facts.on_job_accepted,
    payloads.OwnerSet: facts.on_owner_set,
    payloads.AccessSet: facts.on_access_set,
    payloads.Held: facts.on_job_held,
    payloads.Released: facts.on_job_held,
    payloads.ForecastMade: facts.on_forecast,
    payloads.ForecastScored: facts.on_forecast,
    healing_payloads.HealingLearned: facts.on_healing_learned,
    healing_payloads.ActivityStopped: facts.on_activity,
    healing_payloads.ActivityReopened: facts.on_activity,
}


# Events about sites: description, status, learned statistics, and the latest probe.

_json = msgspec.json.Encoder()

SiteStatusChange = payloads.SiteHibernated | payloads.SiteWoken | payloads.SiteStanding


def on_site(row: SiteRow, keys: Keys, key: StoredKey, event: Event, data: payloads.Payload) -> None:
    """Fold any event about a site; each updates its row."""
    row.updated_at = max(row.updated_at, event.time)
    if isinstance(data, payloads.SiteDescribed):
        _on_described(row, keys, key, event, data)
    elif isinstance(data, SiteStatusChange):
        _on_status(row, keys, key, event, data)
    elif isinstance(data, payloads.SiteLatencies) and takes(keys, Register.LATENCIES, key):
        row.latencies = _json.encode(data).decode()
    elif isinstance(data, payloads.SiteProbed) and takes(keys, Register.PROBED, key):
        result = f"a pilot came after {data.seconds:.0f} s" if data.passed else data.message or "no pilot came"
        row.probed_at, row.probe = event.time, result


def _on_described(row: SiteRow, keys: Keys, key: StoredKey, event: Event, data: payloads.SiteDescribed) -> None:
    if takes(keys, Register.DESCRIBED, key):
        row.kind = data.kind
    if takes(keys, Register.STANDING, key):
        row.status, row.score, row.learned = data.status, None, ""
    if takes(keys, Register.STATUS, key):
        row.message, row.reason, row.since = data.message, "", event.time


def _on_status(row: SiteRow, keys: Keys, key: StoredKey, event: Event, data: SiteStatusChange) -> None:
    """The latest status, and what was learned by then; a periodic report keeps the reason."""
    if takes(keys, Register.STANDING, key):
        row.score, row.learned = data.score, data.learned
        if isinstance(data, payloads.SiteStanding):
            row.status = data.status
        else:
            row.status = "hibernated" if isinstance(data, payloads.SiteHibernated) else "candidate"
    if not isinstance(data, payloads.SiteStanding) and takes(keys, Register.STATUS, key):
        row.message, row.reason, row.since = data.message, data.reason, event.time


# The pilots, nodes and sites of a batch, and what the service learned: loaded, joined and written like the rows of jobs.


class ResourceRows:
    """The rows of pilots, nodes, sites and knowledge that a batch touches."""

    def __init__(self, ledger: Ledger, others: Sequence[Checked]) -> None:
        """Load the rows for events without a package, and for events that describe a node."""
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
        self._files = CachedFileRows(ledger, others) if sites else None
        self._knowledge: dict[str, tuple[KnowledgeRow, Keys]] = {}
        if any(isinstance(one.data, healing_payloads.IncidentsLearned) for one in others):
            known = ledger.rows_by_keys(KnowledgeRow, by=("name",), keys=[(INCIDENTS,)])
            self._knowledge = {row.name: (row, keys_of(row)) for row in known}
        if nodes:
            self._nodes = {row.node: (row, keys_of(row)) for row in ledger.nodes(nodes)}

    def on_other(self, one: Checked, key: StoredKey) -> None:
        """Fold an event without a job."""
        kind, event, data = one.kind, one.event, one.data
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
            if self._files is not None:
                self._files.fold(one, key)
        elif isinstance(data, healing_payloads.IncidentsLearned):
            row, keys = self._knowledge.setdefault(INCIDENTS, (KnowledgeRow(name=INCIDENTS), {}))
            facts.on_incidents_learned(row, keys, key, event, data)
        if isinstance(data, payloads.NodeDescribed):
            self.on_node(event, key, data)

    def on_node(self, event: Event, key: StoredKey, data: payloads.NodeDescribed) -> None:
        """Fold the description of a node, whatever else the event is about."""
        row, keys = self._nodes.setdefault(data.node, (NodeRow(node=data.node), {}))
        row.updated_at = max(row.updated_at, event.time)
        facts.on_node_described(row, keys, key, event, data)

    def tell(self, changes: Changes) -> None:
        """Add the rows to the changes."""
        changes.pilots = [with_keys(row, keys) for row, keys in self._pilots.values()]
        changes.nodes = [with_keys(row, keys) for row, keys in self._nodes.values()]
        changes.sites = [with_keys(row, keys) for row, keys in self._sites.values()]
        changes.knowledge = [with_keys(row, keys) for row, keys in self._knowledge.values()]
        if self._files is not None:
            changes.cached_files = self._files.result()
