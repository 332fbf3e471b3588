"""Values are frozen and made by keywords, in the whole program but for the classes that are named here."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import msgspec

import pilotage

MUTABLE = {
    "adapters": "PackageRecord",
    "book": (
        "AttemptFacts _BatchOfEvents _BatchOfText _Brief CachedFileRow Changes EventRow FailureRow JobRow _Known KnowledgeRow "
        "MailRow NodeRow NoticeRow PackageFacts PackageRow ParkedRow PilotRow Row SiteRow Sketch StageRow "
        "StateHistogram StatisticRow StreamRow SubscriptionRow TagRow WatchedRow"
    ),
    "engine": "ActivePackage AttemptState CachedFile Fault",
    "language": "DagBuilder DagNode Draft Notes Scope",
    "model": "Observed SiteObserved",
    "service": "_ActiveSubscription _AnyBatch BookCheck Outbox _Sited _Stepped _Waiting",
    "simulator": "Keyed Run SiteFigures",
}
"""What is changed where it lies: rows of the book, state of the engine, drafts. By room, names with spaces between."""

BY_POSITION = {
    "adapters": "Migration PackageRecord Question Schemas ServedValue Sql _Start _Url",
    "app": "_Answer Converted _Fault _Mark _Pilot",
    "book": (
        "Ago _Attempt _BatchOfEvents _BatchOfText BegunLife _Brief _Candidate Checked EndedLife _Facts _Known _Life Move "
        "_Outcome PackageRow ParkedEvent _Payload Query QueryPlace RawValue Sketch TagRow _Token"
    ),
    "client": "_Announced Failure _MergedCursor _Offset",
    "engine": "ActivePackage AttemptState Beginning Folds Hold Refusal Room _HoldMessage Tally",
    "language": (
        "Choice Colour Condition ConfigurationFile Document DraftFile EdgeFile EnvironmentVariable "
        "ErrorCode Field _Gap Inline InvalidValue LateList LateStage Layout Line ListOf Listing LoadResult "
        "LoadedJob LocatedNumber LocatedText MapOf Mark Notes Number Origin OutputPath OutputTemplates Pair "
        "Placeholder Quantity Record Resources Scalar Shape _Sheet Slot SubmitDescription Table Template "
        "Word"
    ),
    "model": "Assignment AttemptRef Event Exchange ExchangeReply InputSource PackageId PackageSetting TemplateLayout",
    "ports": "IndexQuery Mark",
    "reading": "ResolvedQuery ResultPage _Shape _Template",
    "service": "_ActiveSubscription _AnyBatch Batch DueDelivery _KeyedPackage _Made _Parameters _Request _Sited _Status _Stepped _Waiting",
    "simulator": "DriftingQueue Empirical Exponential AttemptOutcome Fixed Keyed Run",
}
"""What may be made without naming its fields: few fields that are told apart at a glance, or an array on the wire."""


def test_values_are_frozen_but_for_those_that_are_named() -> None:
    assert {_name(each) for each in _structs() if not each.__struct_config__.frozen} == _named(MUTABLE)


def test_values_are_made_by_keywords_but_for_those_that_are_named() -> None:
    assert {_name(each) for each in _structs() if each.__match_args__} == _named(BY_POSITION)


def test_a_value_that_can_be_changed_and_made_by_position_is_seen() -> None:
    class Loose(msgspec.Struct):
        size_bytes: int

    class Firm(msgspec.Struct, frozen=True, kw_only=True):
        size_bytes: int

    assert not Loose.__struct_config__.frozen
    assert Loose.__match_args__
    assert Firm.__struct_config__.frozen
    assert not Firm.__match_args__


def _structs() -> Iterator[type[msgspec.Struct]]:
    """Every struct of every module of the program."""
    for module in pkgutil.walk_packages(pilotage.__path__, "pilotage."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    below: list[type[msgspec.Struct]] = [msgspec.Struct]
    while below:
        found = below.pop().__subclasses__()
        below.extend(found)
        # The framework makes one for each route, in the route's name: those are in no source.
        yield from (each for each in found if each.__module__.startswith("pilotage.") and _is_written(each))


def _is_written(struct: type[msgspec.Struct]) -> bool:
    module: object = import_module(struct.__module__)
    for name in struct.__qualname__.split("."):
        module = getattr(module, name, None)
    return module is struct


def _name(struct: type[msgspec.Struct]) -> str:
    _program, room, *_ = struct.__module__.split(".")
    return f"{room} {struct.__qualname__}"


def _named(table: dict[str, str]) -> set[str]:
    return {f"{room} {name}" for room, names in table.items() for name in names.split()}
