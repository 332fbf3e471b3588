"""Whatever people, batch systems and agents say, and however long: the core writes nothing that its own book refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.agent.pilot.pilot import utc_offset
from pilotage.book.codec import Checked, Codec
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AttemptRef, Exchange
from pilotage.model.exchange.operations import Hold, Kill, Replicate, Reschedule, Restart, SubmitAttempt, SubmitPilot
from pilotage.model.exchange.reports import Gone, SiteSeen, SubmissionFailed, Submitted
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import SelectionSettings
from pilotage.model.states import ExitCodeGasw
from pilotage.model.texts import REPLICAS_MAX, moment, node_moment, offset_minutes
from pilotage.service.messages import Input, OperationRequest, Submit
from tests.kit.small_engine import JOB, Small
from tests.kit.small_plans import bag, kind, registered_of, site

ANYTHING = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)  # halves of surrogate pairs, too
LONG = st.builds(lambda text, times: (text or "x") * times, ANYTHING, st.sampled_from([70, 300, 20_000]))
TEXTS = st.one_of(ANYTHING, ANYTHING, LONG)
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True), st.integers(-(2**70), 2**70).map(float))


class Known:
    """A service with a pilot, a request, a bound attempt, and something under way."""

    def __init__(self, **settings: Any) -> None:
        self.small = small = Small(site("a", cores=2, pilots=2), site("c", mode="bound"), **settings)
        small.submit(bag(8, kind(memory_bytes=0)))
        self.pilot = small.pilot()
        self.keys = [each.key for each in small.take(SubmitPilot)]
        self.keys += [each.key for each in small.take(SubmitAttempt)]
        self.bound = next(each for _, each in small.engine.state.jobs.by_id[JOB].attempts() if each.key)
        self.refs = [each.ref for _, each in small.engine.state.jobs.by_id[JOB].attempts()]


@st.composite
def inputs(draw: st.DrawFn, known: Known) -> Input:
    """Anything that can come in, about things that exist or not."""
    keys = st.one_of(st.sampled_from([*known.keys, known.pilot.request, known.bound.key]), TEXTS)
    packages = st.one_of(st.sampled_from([f"1.{n}.1" for n in range(1, 9)]), st.just(""), TEXTS)
    sites = st.sampled_from(["a", "c"])
    match draw(st.sampled_from(["kill", "operation", "report", "exchange", "submit"])):
        case "kill":
            return OperationRequest(token=1, operation=Kill(job=JOB, package=draw(packages), message=draw(TEXTS)))
        case "operation":
            about: dict[str, Any] = {"job": draw(st.one_of(st.just(JOB), TEXTS)), "package": draw(packages)}
            made = draw(st.sampled_from([Hold, Restart, Replicate, Reschedule]))
            if made in (Hold, Restart):
                about["message"] = draw(TEXTS)
            return OperationRequest(token=1, operation=made(**about))
        case "report":
            report = draw(
                st.one_of(
                    st.builds(Submitted, site=sites, key=keys, native_id=TEXTS),
                    st.builds(SubmissionFailed, site=sites, key=keys, reason=TEXTS, message=TEXTS),
                    st.builds(Gone, site=sites, key=keys, reason=TEXTS, stderr=TEXTS),
                    st.builds(SiteSeen, site=sites, answers=st.booleans(), message=TEXTS),
                )
            )
            assert isinstance(report, Submitted | SubmissionFailed | Gone | SiteSeen)
            return report
        case "exchange":
            return draw(exchanges(known))
        case _:
            registered = registered_of(bag(1), owner=draw(TEXTS))
            registered = msgspec.structs.replace(registered, name=draw(TEXTS), tags={"a": draw(TEXTS)})
            return Submit(token=1, job=draw(st.sampled_from(["j2", JOB, ""])), registered=registered, plan=bag(1))


@st.composite
def exchanges(draw: st.DrawFn, known: Known) -> Exchange:
    """What an agent says: one that is known, or any."""
    pilot = draw(st.one_of(st.just(known.pilot.name), st.just(f"{known.bound.key}.1"), TEXTS))
    ref = draw(st.one_of(st.sampled_from(known.refs), st.builds(AttemptRef, TEXTS, TEXTS, st.integers())))
    started = payloads.PilotStarted(site=draw(st.sampled_from(["a", "c"])), request=None)
    datas: list[tuple[payloads.Payload, dict[str, Any]]] = [(started, {"pilot": pilot})]
    finished = payloads.AttemptFinished(exit_code=ExitCodeGasw.EXECUTION_FAILED, exit_message="x", reason="signal")
    about = {"job": ref.job, "package": ref.package, "attempt": ref.attempt}
    datas += [(finished, about), (payloads.Noted(text="x"), about), (payloads.PilotEnded(reason="x"), {"pilot": pilot})]
    first = draw(st.sampled_from([1, 2, 2**53, 2**70]))
    events = [
        Event(
            source="agent",
            stream=pilot,
            n=first + n,
            type=draw(st.one_of(st.just(type(data).__name__), TEXTS)),
            time=draw(st.sampled_from([1000.0, -1.0, float("nan"), float("inf")])),
            data=msgspec.Raw(draw(st.sampled_from([msgspec.json.encode(data), b"{}", b"[", b'{"reason":""}']))),
            **subject,
        )
        for n, (data, subject) in enumerate(datas)
    ]
    return Exchange(
        pilot=pilot,
        site=draw(st.sampled_from(["a", "c"])),
        sequence=draw(st.integers(0, 2**60)),
        serves=draw(st.one_of(st.none(), st.just(known.bound.ref), st.just(ref))),
        node=draw(TEXTS),
        capacity=Capacity(cores_hundredths=draw(st.sampled_from([0, 100, 2**53 - 1]))),
        backlog=draw(st.integers(-5, 100)),
        remaining_seconds=draw(NUMBERS),
        leaving=draw(st.one_of(st.just(""), TEXTS)),
        held=(ref,),
        events=tuple(events[: draw(st.integers(0, len(events)))]),
    )


@given(st.data())
def test_every_event_that_is_written_can_be_read(data: st.DataObject) -> None:
    known, codec = Known(), Codec()
    for after in data.draw(st.lists(st.sampled_from([0.0, 1.0, 70.0]), min_size=1, max_size=6)):
        known.small.now += after
        outbox = known.small.core.step([data.draw(inputs(known))], known.small.now)
        for one in outbox.events:
            found = codec.check(one.event)
            assert isinstance(found, Checked), found
            assert msgspec.json.encode(found.data) == msgspec.json.encode(one.data)
        known.small.engine.sanity_check()


def test_more_replicas_than_an_event_can_name_are_refused() -> None:
    known = Known(selection=SelectionSettings(max_replicas=2 * REPLICAS_MAX))
    known.small.watched = False
    package = known.refs[0].package
    asked = [OperationRequest(token=n, operation=Replicate(job=JOB, package=package)) for n in range(REPLICAS_MAX + 5)]
    outbox = known.small.core.step(asked, known.small.now)
    assert [type(each.outcome).__name__ for each in outbox.answers] == ["Accepted"] * REPLICAS_MAX + ["Refused"] * 5


@pytest.mark.parametrize("text", ["", "x" * 20_000, "\ud800", "é" * 300])
def test_every_text_of_a_message_may_be_anything(text: str) -> None:
    known, codec = Known(), Codec()
    event = Event(
        source="agent", stream=known.pilot.name, n=2, type=text, time=1000.0, job=text, data=msgspec.Raw(b"{}")
    )
    said = known.pilot.message()
    inbox: list[Input] = [
        Submitted(site="a", key=known.pilot.request, native_id=text),
        Submitted(site="c", key=known.bound.key, native_id=text),
        msgspec.structs.replace(said, events=(event,), node=text, leaving=text, remaining_seconds=float("inf")),
        Gone(site="a", key=known.pilot.request, reason=text, stderr=text),
        SubmissionFailed(site="c", key=known.bound.key, reason=text, message=text),
        OperationRequest(token=1, operation=Hold(job=JOB, message=text)),
        OperationRequest(token=1, operation=Kill(job=JOB, message=text)),
        OperationRequest(token=1, operation=Restart(job=JOB, message=text)),
    ]
    events = known.small.core.step(inbox, known.small.now).events
    events += known.small.core.step([], known.small.now + 19.0).events
    kinds = {one.event.type for one in events}
    assert kinds >= {"AttemptQueued", "Noted", "PilotEnded", "AttemptLost", "Held", "CancelAccepted", "Restarted"}
    assert [found for one in events if not isinstance(found := codec.check(one.event), Checked)] == []


@given(st.integers(-24 * 60 + 1, 24 * 60 - 1), st.floats(0.0, 4e9))
def test_the_offset_that_a_pilot_tells_is_read_again(minutes: int, at: float) -> None:
    told = utc_offset(60 * minutes)
    assert offset_minutes(told) == minutes
    shown = node_moment(at, utc_offset=told)
    assert shown == moment(at) if minutes == 0 else shown.startswith(f"{moment(at)} (")


@given(st.one_of(ANYTHING, st.from_regex(r"[+-]?[0-9]{1,3}:?[0-9]{0,3}")))
def test_a_text_that_is_no_offset_changes_no_time(text: str) -> None:
    minutes = offset_minutes(text)
    assert minutes is None or utc_offset(60 * minutes) == text.replace("-00:00", "+00:00")
    if not minutes:
        assert node_moment(0.0, utc_offset=text) == moment(0.0)
