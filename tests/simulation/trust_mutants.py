"""Planted bugs in who is believed, for how long, and of what: leases, late words, lies, and texts that nobody can read."""

from __future__ import annotations

from typing import Any

from pilotage.engine.decisions import lost_pilots
from pilotage.engine.engine_state import EngineState
from pilotage.engine.inbound import batch_reports, exchanges
from pilotage.engine.state.sites import SiteState
from pilotage.model import texts
from pilotage.model.events import payloads
from pilotage.model.exchange.reports import Gone
from pilotage.simulator.trials.checked_world import CheckedWorld
from tests.simulation.mutants import Patch, a_late_success_is_forgotten, graft, mutant, whoever_it_is


@mutant(first_seed=6, by="creations successes")
def a_late_success_is_forgotten_and_nobody_compares(patch: Patch) -> None:
    """The success of an attempt that nobody waited for any more goes unheard."""
    patch.setattr(CheckedWorld, "_compare", lambda *_: None)
    a_late_success_is_forgotten(patch)


@mutant(first_seed=137, by="leases")
def a_pilot_is_suspected_within_its_lease(patch: Patch) -> None:
    """Half a lease of silence is taken for a whole one."""
    checked = lost_pilots.check_lease

    def check_lease(state: EngineState, name: str) -> None:
        pilot = state.pilots.by_name.get(name)
        if pilot is None:
            return
        heard_at = pilot.heard_at
        pilot.heard_at -= 0.5 * state.settings.lease_seconds
        checked(state, name)
        pilot.heard_at = heard_at

    graft(patch, checked, check_lease)


@mutant(first_seed=137, by="leases")
def a_batch_system_is_believed_before_its_pilots(patch: Patch) -> None:
    """A pilot that speaks is given up because a listing does not have it."""
    heard = batch_reports._gone

    def gone(state: EngineState, site: SiteState, report: Gone) -> None:
        for pilot in [each for each in site.pilots.values() if each.request == report.key]:
            state.log.write(payloads.PilotEnded(reason=report.reason), pilot=pilot.name)
        heard(state, site, report)

    graft(patch, heard, gone)


@mutant(first_seed=4, by="rogues")
def whatever_an_agent_says_of_attempts_is_believed(patch: Patch) -> None:
    """An agent may end what another runs, and what it has ended itself, as often as it likes."""
    graft(patch, exchanges.may_report, whoever_it_is)


@mutant(first_seed=44, by="journal")
def a_text_is_written_however_long_it_is(patch: Patch) -> None:
    """What somebody said too much of is decided, and cannot be read by whoever starts from the book."""

    def clipped(text: str, *_: Any) -> str:
        return text

    graft(patch, texts.clipped, clipped)
