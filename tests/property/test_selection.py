"""Whatever happens at sites, in whatever order: the choice stays sane, and follows from what was learned and the draws alone."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.engine.selection import Draws, LearnedState, Requirements, SelectionSettings, SiteDescription, Underway
from pilotage.engine.selection.black_holes import Cause
from pilotage.engine.selection.candidates import CANDIDATE, HIBERNATED, OVERLOADED
from pilotage.engine.selection.sampling import Weights, weight_of, weight_of_grade
from pilotage.engine.selection.scores import Operation, Score, tscore
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.model.exchange.reports import Trouble
from pilotage.model.resources import Capacity, Demand
from pilotage.model.settings.engine import Policy
from pilotage.model.site import Site
from tests.kit.told_selection import Choice, Selection

POLICIES: list[Policy] = ["weighted-random", "best", "thompson", "uniform"]
CAUSES: list[Cause] = ["success", "platform", "application", "neutral"]
OPERATIONS: list[Operation] = ["submission", "transfer", "file-operation"]
TROUBLES: list[Trouble | None] = [None, "failed", "connection-refused", "connection-timed-out"]
ASKS = {0: Requirements(), 1: Requirements(demand=Demand(memory_bytes=2**30)), 2: Requirements(executor="cluster")}
SITES = {
    "a": SiteDescription(site=Site(name="a", mode="bound")),
    "b": SiteDescription(site=Site(name="b", capacity=Capacity(memory_bytes=2**32))),
    "c": SiteDescription(site=Site(name="c", kind="cluster"), initial_score=2.0),
    "d": SiteDescription(site=Site(name="d", kind="cluster", mode="bound", job_throttle=0.5)),
}


class Running:
    """An attempt of the test."""

    def __init__(self, site: str, shape: int, activity: str, created_at: float) -> None:
        self.site = site
        self.shape = shape
        self.activity = activity
        self.created_at = created_at
        self.began_at: float | None = None


class Histories(RuleBasedStateMachine):
    """Two selections are told the same; the second one is made anew now and then from what the first has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.decisions = 0
        self.attempts: list[Running] = []
        self.operations: Counter[tuple[str, Operation]] = Counter()
        self.slots: dict[str, dict[int, int]] = {}
        self.away: set[str] = set()

    @initialize(policy=st.sampled_from(POLICIES), names=st.sets(st.sampled_from(sorted(SITES)), min_size=1))
    def begin(self, policy: Policy, names: set[str]) -> None:
        self.settings = SelectionSettings(
            policy=policy,
            queue_time_samples_min=3,
            trial_room=2,
            black_hole_failures=2,
            thompson_looked_at=2,
            thompson_activities_max=2,
        )
        self.both = [Selection(self.settings), Selection(self.settings)]
        for name in sorted(names):
            self.add(name)

    def add(self, name: str) -> None:
        for each in self.both:
            each.add(SITES[name])

    def known(self) -> list[str]:
        return self.both[0].names()

    def some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(SITES)))

    # --- what can happen --------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def a_site_comes_or_is_told_again(self, data: st.DataObject) -> None:
        self.add(self.some(data))

    @rule(data=st.data())
    def a_site_goes(self, data: st.DataObject) -> None:
        name = self.some(data)
        for each in self.both:
            each.remove(name)
        self.attempts = [attempt for attempt in self.attempts if attempt.site != name]
        self.slots.pop(name, None)
        self.away.discard(name)
        for operation in OPERATIONS:
            self.operations.pop((name, operation), None)

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 30.0, 400.0, 5000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(shape=st.sampled_from(sorted(ASKS)), data=st.data())
    def one_is_picked(self, shape: int, data: st.DataObject) -> None:
        avoid = data.draw(st.sets(st.sampled_from(sorted(SITES)), max_size=2))
        unfit = data.draw(st.sets(st.sampled_from(sorted(SITES)), max_size=1))
        prefer = data.draw(st.sampled_from(["", "a", "c"]))
        activity = data.draw(st.sampled_from(["x", "y", "z"]))
        self.decisions += 1
        chosen: list[Choice | None] = [
            each.pick(
                Draws(7, self.decisions),
                now=self.now,
                requirements=ASKS[shape],
                shape=shape,
                activity=activity,
                prefer=prefer,
                avoid=avoid,
                unfit=unfit,
            )
            for each in self.both
        ]
        assert chosen[0] == chosen[1]
        choice = chosen[0]
        if choice is None:
            return
        assert choice.site not in unfit
        assert self.both[0].status(choice.site, requirements=ASKS[shape], shape=shape) == "candidate"
        attempt = Running(choice.site, shape, activity, self.now)
        self.attempts.append(attempt)
        for each in self.both:
            each.use(choice.site, shape)
            each.attempt_created(choice.site, at=self.now, activity=activity)

    @rule(
        shape=st.sampled_from(sorted(ASKS)),
        count=st.integers(1, 6),
        cause=st.sampled_from(CAUSES),
        seconds=st.sampled_from([0.01, 20.0]),
        queue=st.sampled_from([None, 2.0, 700.0]),
    )
    def work_is_done(self, shape: int, count: int, cause: Cause, seconds: float, queue: float | None) -> None:
        for _ in range(count):
            self.decisions += 1
            chosen = [
                each.pick(Draws(8, self.decisions), now=self.now, requirements=ASKS[shape], shape=shape, activity="x")
                for each in self.both
            ]
            assert chosen[0] == chosen[1]
            if chosen[0] is None:
                return
            site, began_at = chosen[0].site, self.now
            self.now += seconds
            changes = []
            for each in self.both:
                each.use(site, shape)
                each.attempt_created(site, at=began_at, activity="x")
                each.attempt_began(site, at=began_at, queued_seconds=queue)
                each.free(site, shape)
                changes.append(
                    each.attempt_ended(
                        site,
                        cause=cause,
                        at=self.now,
                        created_at=began_at,
                        began_at=began_at,
                        queued_seconds=queue,
                        activity="x",
                        pilot=f"{site}-1",
                    )
                )
            assert changes[0] == changes[1]

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), cause=st.sampled_from(CAUSES), queue=st.sampled_from([None, 1.0, 5000.0]))
    def an_attempt_begins_or_ends(self, data: st.DataObject, cause: Cause, queue: float | None) -> None:
        attempt = data.draw(st.sampled_from(self.attempts))
        if attempt.began_at is None and data.draw(st.booleans()):
            attempt.began_at = self.now
            for each in self.both:
                each.attempt_began(attempt.site, at=self.now, queued_seconds=queue)
            return
        self.attempts.remove(attempt)
        changes = []
        for each in self.both:
            each.free(attempt.site, attempt.shape)
            changes.append(
                each.attempt_ended(
                    attempt.site,
                    cause=cause,
                    at=self.now,
                    created_at=attempt.created_at,
                    began_at=attempt.began_at,
                    queued_seconds=queue,
                    activity=attempt.activity,
                    pilot=f"{attempt.site}-1",
                    node=f"{attempt.site}-node",
                )
            )
        assert changes[0] == changes[1]

    @rule(data=st.data(), operation=st.sampled_from(OPERATIONS), trouble=st.sampled_from(TROUBLES))
    def an_operation_begins_or_ends(self, data: st.DataObject, operation: Operation, trouble: Trouble | None) -> None:
        name = self.some(data)
        if name not in self.known():
            return
        ends = self.operations[name, operation] > 0 and data.draw(st.booleans())
        self.operations[name, operation] += -1 if ends else 1
        for each in self.both:
            if not ends:
                each.operation_began(name, operation)
            elif operation == "submission":
                each.submission_ended(name, seconds=3.0, trouble=trouble)
            else:
                each.operation_ended(name, operation, trouble)

    @rule(
        data=st.data(),
        kind=st.sampled_from(["pilot", "queued", "replica", "probe", "sick", "dead", "hibernate", "wake"]),
    )
    def something_is_told(self, data: st.DataObject, kind: str) -> None:
        name, other = self.some(data), self.some(data)
        changes = []
        for each in self.both:
            told = {
                "pilot": lambda each=each: each.pilot_began(name, queued_seconds=20.0),
                "queued": lambda each=each: each.still_queued(name, queued_seconds=4000.0, at=self.now),
                "replica": lambda each=each: each.replica_won(
                    50.0, others=[(name, 40.0), (other, 9000.0)], at=self.now
                ),
                "probe": lambda each=each: each.probe_finished(name, passed=True, at=self.now, score=3.0),
                "sick": lambda each=each: each.probe_finished(name, passed=False, at=self.now),
                "dead": lambda each=each: each.died_at_start(name, count=5, message="", at=self.now, what="died"),
                "hibernate": lambda each=each: each.hibernate(name, at=self.now),
                "wake": lambda each=each: each.wake(name),
            }[kind]()
            changes.append(told)
        assert changes[0] == changes[1]

    @rule(data=st.data(), shape=st.sampled_from(sorted(ASKS)), slots=st.integers(0, 4), answers=st.booleans())
    def room_changes(self, data: st.DataObject, shape: int, slots: int, answers: bool) -> None:  # noqa: FBT001
        name = self.some(data)
        if name not in self.known():
            return
        self.slots.setdefault(name, {})[shape] = slots
        (self.away.discard if answers else self.away.add)(name)
        for each in self.both:
            each.room_changed(name, slots={shape: slots}, answers=answers)

    @rule()
    def a_restart_knows_what_was_learned(self) -> None:
        first = self.both[0]
        fresh = Selection(self.settings)
        written = [msgspec.json.encode(first.learned_state(name)) for name in first.names()]
        for name in first.names():
            fresh.add(SITES[name])
        for learned_state in reversed(written):  # in whatever order
            fresh.restore(msgspec.json.decode(learned_state, type=LearnedState))
        for name in first.names():
            self.tell_facts(fresh, name)
        self.both[1] = fresh

    def tell_facts(self, selection: Selection, name: str) -> None:
        here = [attempt for attempt in self.attempts if attempt.site == name]
        selection.recount(
            name,
            attempts=[
                Underway(activity=each.activity, created_at=each.created_at, began_at=each.began_at) for each in here
            ],
            used=Counter(each.shape for each in here),
            operations={operation: self.operations[name, operation] for operation in OPERATIONS},
        )
        selection.room_changed(name, slots=self.slots.get(name, {}), backlog=0, answers=name not in self.away)

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def what_was_learned_is_the_same(self) -> None:
        if hasattr(self, "both"):
            standings = [[each.learned_state(name) for name in each.names()] for each in self.both]
            assert standings[0] == standings[1]

    @invariant()
    def every_site_is_in_one_set_and_weights_are_exact(self) -> None:
        for selection in getattr(self, "both", []):
            sites = selection._sites
            for shape, requirements in ASKS.items():
                pool = sites.pool(requirements, shape)
                places: list[SiteProfile] = [each for each in sites.profiles if each is not None]
                allowed = [each for each in places if pool.allowed(each.index)]
                sets = {
                    status: {each.name for each in allowed if pool.status[each.index] == status}
                    for status in (CANDIDATE, HIBERNATED, OVERLOADED)
                }
                assert sorted(name for names in sets.values() for name in names) == sorted(
                    each.name for each in allowed
                )
                assert pool.counts[1:] == [len(sets[status]) for status in (CANDIDATE, HIBERNATED, OVERLOADED)]
                assert sets[HIBERNATED] == {each.name for each in allowed if each.sleep is not None}
                assert sets[CANDIDATE] == {each.name for each in allowed if each.sleep is None and each.has_room(shape)}
                uniform = sites.settings.policy == "uniform"
                weights = {each.name: 1 if uniform else weight_of_grade(each.score.grade) for each in allowed}
                assert pool.weights.total == sum(weights[name] for name in sets[CANDIDATE])
                assert pool.awake == sum(each.sleep is None and each.answers for each in allowed)
            asleep = [each.index for each in sites.by_name.values() if each.sleep is not None]
            assert sorted(sites.asleep) == sorted(asleep)

    @invariant()
    def scores_stay_within_their_bounds(self) -> None:
        for selection in getattr(self, "both", []):
            for name in selection.names():
                score = selection._sites.by_name[name].score
                assert -10.0 <= score.value <= 50.0
                assert 0.01 < score.tscore < 100.0

    @invariant()
    def sums_over_all_sites_are_those_of_the_sites(self) -> None:
        for selection in getattr(self, "both", []):
            sites = selection._sites
            places = list(sites.by_name.values())
            for field in ("failures", "ends", "taken", "running", "began"):
                assert getattr(sites.everyone.tally(), field) == sum(
                    getattr(each.ends.tally(), field) for each in places
                )
            waits = [wait for each in places for wait in each.waits.numbers()]
            average = sum(waits) / len(waits) / 1e6 if waits else None
            assert sites.queue_times.average_seconds == average

    def teardown(self) -> None:
        """Nobody is stuck: when everything has ended and enough time has passed, some site is picked."""
        if not hasattr(self, "both"):
            return
        selection = self.both[0]
        for attempt in self.attempts:
            selection.free(attempt.site, attempt.shape)
            selection.attempt_ended(
                attempt.site, cause="platform", at=self.now, created_at=attempt.created_at, began_at=attempt.began_at
            )
        for name in selection.names():
            selection.room_changed(name, answers=True)
        sites = selection._sites
        for shape, requirements in ASKS.items():
            pool = sites.pool(requirements, shape)
            left = [each for each in sites.by_name.values() if pool.allowed(each.index)]
            could = [each for each in left if each.sleep is None or each.sleep.reason != "by-hand"]
            if not could:
                continue
            later, alone = self.now, not pool.awake
            # Where pilots do not even start, each try costs a batch job.
            dead = all(each.sleep is not None and each.sleep.reason == "dead-starts" for each in could)
            longest = 3600.0 if dead else 60.0
            choice = selection.pick(Draws(1, 1), now=later, requirements=requirements, shape=shape)
            while choice is None:  # the end of a trial elsewhere is a time to ask again, too
                assert alone
                again = selection.ask_again_at(now=later, requirements=requirements, shape=shape)
                assert again is not None
                assert later < again <= self.now + longest
                later = again
                choice = selection.pick(Draws(1, 1), now=later, requirements=requirements, shape=shape)
            assert choice.site in {each.name for each in could}


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    moves=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(["began", "good", "bad", "reset"])), max_size=60
    )
)
def test_load_that_was_taken_and_returned_leaves_nothing(moves: list[tuple[Operation, str]]) -> None:
    # The same ends and resets without their load: an operation adds only what its end is worth.
    loaded, plain = Score(SelectionSettings(), 0.0), Score(SelectionSettings(), 0.0)
    open_operations: Counter[Operation] = Counter()
    for operation, move in moves:
        if move == "began":
            open_operations[operation] += 1
            loaded.began(operation)
        elif move == "reset":
            loaded.reset(0.0)
            plain.reset(0.0)
        elif open_operations[operation]:
            open_operations[operation] -= 1
            loaded.ended(operation, None if move == "good" else "connection-timed-out")
            if move == "good":
                plain.succeeded()
            else:
                plain.ended(operation, "connection-timed-out")
    for operation, count in open_operations.items():
        for _ in range(count):
            loaded.ended(operation)
            plain.succeeded()
    assert loaded.value == plain.value
    assert loaded.load == 0.0


@given(
    changes=st.lists(st.tuples(st.integers(0, 40), st.floats(-10.0, 50.0) | st.none()), max_size=80),
    draw=st.floats(0.0, 1.0, exclude_max=True),
)
def test_weights_equal_a_fresh_sum_after_any_history(changes: list[tuple[int, float | None]], draw: float) -> None:
    weights, model = Weights(), dict.fromkeys(range(41), 0)
    for index, score in changes:
        model[index] = weights[index] = 0 if score is None else weight_of(tscore(score, SelectionSettings()))
    assert weights.total == sum(model.values())
    assert {index: weights[index] for index in model} == model
    if not weights.total:
        assert weights.pick(draw) is None
        assert weights.best() is None
        return
    largest = max(model.values())
    assert weights.best() == min(index for index, weight in model.items() if weight == largest)
    target, index = math.floor(draw * weights.total), 0
    while target >= model[index]:
        target -= model[index]
        index += 1
    assert weights.pick(draw) == index
    left_out = set(list(model)[::2])
    with weights.without(left_out):
        assert weights.total == sum(weight for each, weight in model.items() if each not in left_out)
    assert weights.total == sum(model.values())
    assert weights.first() == next((each for each, weight in model.items() if weight), None)


@given(scores=st.lists(st.floats(-10.0, 50.0), min_size=2, max_size=2, unique=True).map(sorted))
def test_a_higher_score_is_a_higher_tscore(scores: list[float]) -> None:
    low, high = (tscore(score, SelectionSettings()) for score in scores)
    assert 0.01 < low <= high < 100.0
