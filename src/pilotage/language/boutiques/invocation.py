"""An invocation: the values given to a tool's inputs, and every reason why a descriptor refuses them."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.language.boutiques import command, schema
from pilotage.language.boutiques.descriptor import Descriptor, Group, Input
from pilotage.language.boutiques.values import Value, is_integer, is_number, kind_of, same, shown, value_of
from pilotage.language.text.tree import NOWHERE, Mark, Node, Report, Table
from pilotage.model.errors import did_you_mean


class Invocation(dict[str, Value]):
    """Values by input id, which remember where in their text they stood."""

    def __init__(self, values: Mapping[str, Value], places: Mapping[str, Mark]) -> None:
        super().__init__(values)
        self.places = dict(places)


def read_invocation(node: Node, report: Report) -> dict[str, Value]:
    """The values of an invocation by input id; empty, with a fault noted, when the node is no object."""
    if not isinstance(node, Table):
        report.error("wrong-type", "expected an object that gives inputs their values", node.mark)
        return {}
    values = value_of(node, report)
    places = {key.text: item.mark if item.mark != NOWHERE else key.mark for key, item in node.entries}
    return Invocation(values if isinstance(values, dict) else {}, places)


def check_invocation(descriptor: Descriptor, invocation: Mapping[str, Value], report: Report) -> None:
    """Note every reason why the descriptor refuses the invocation; defaults count as if they were given."""
    check = _Check(descriptor, invocation, report)
    before = len(report.errors)
    if descriptor.invocation_schema:
        check.own_schema(descriptor.invocation_schema)
    else:
        check.values_of_inputs()
        check.dependencies()
        check.groups()
    if len(report.errors) == before:
        for fault in command.condition_faults(descriptor, invocation):
            report.error("bad-condition", fault)
        check.advice()


class _Check:
    def __init__(self, descriptor: Descriptor, invocation: Mapping[str, Value], report: Report) -> None:
        self.descriptor = descriptor
        self.values = command.completed(descriptor, invocation)
        self.report = report
        self.places = invocation.places if isinstance(invocation, Invocation) else {}
        self.inputs = {input_.id: input_ for input_ in descriptor.inputs}

    def error(self, code: str, message: str, *, at: str = "", hint: str = "") -> None:
        self.report.error(code, message, self.places.get(at, NOWHERE), hint=hint)

    def is_active(self, id_: str) -> bool:
        """Whether an input is in use: it has a value, and a flag is not false."""
        if id_ not in self.values:
            return False
        return not (self._is_flag(id_) and self.values[id_] is False)

    def _is_flag(self, id_: str) -> bool:
        return id_ in self.inputs and self.inputs[id_].type == "Flag"

    def own_schema(self, rules: dict[str, Value]) -> None:
        try:
            for path, message in schema.faults(self.values, rules):
                label = ".".join(str(step) for step in path)
                at = str(path[0]) if path else ""
                self.error("invocation-schema", f"{label}: {message}" if label else message, at=at)
        except schema.SchemaError as fault:
            self.error("bad-invocation-schema", f"the descriptor's 'invocation-schema' cannot be used: {fault}")

    def values_of_inputs(self) -> None:
        for id_ in self.values:
            if id_ not in self.inputs:
                hint = did_you_mean(id_, self.inputs) if len(self.report.errors) < 100 else ""
                self.error("unknown-input", f"the tool has no input {shown(id_)}", at=id_, hint=hint)
        for id_, input_ in self.inputs.items():
            if id_ in self.values:
                self._check_value(input_, self.values[id_])
            elif not input_.optional:
                kind = f"a list of {input_.type} values" if input_.is_list else f"a {input_.type}"
                self.error("missing-input", f"the input {id_!r} ({input_.name}, {kind}) is not optional and not given")

    def _check_value(self, input_: Input, value: Value) -> None:
        if not input_.is_list:
            self._check_item(input_, value)
            return
        if not isinstance(value, list):
            self.error("wrong-type", f"{input_.id}: expected a list, found {kind_of(value)}", at=input_.id)
            return
        least, most = input_.min_list_entries or 0, input_.max_list_entries or len(value)
        if not least <= len(value) <= most:
            bounds = f"at least {least}" if len(value) < least else f"at most {most}"
            self.error("list-length", f"{input_.id}: expected {bounds} entries, found {len(value)}", at=input_.id)
        for item in value:
            self._check_item(input_, item)

    def _check_item(self, input_: Input, value: Value) -> None:
        id_ = input_.id
        if input_.value_choices and not input_.integer:
            if not any(same(value, other=choice) for choice in input_.value_choices):
                listed = ", ".join(str(choice) for choice in input_.value_choices[:20])
                hint = did_you_mean(value, map(str, input_.value_choices)) if isinstance(value, str) else ""
                self.error(
                    "not-a-choice", f"{id_}: expected one of {listed}, found {kind_of(value)}", at=id_, hint=hint
                )
                return
        else:
            fits, expected = {
                "String": (isinstance(value, str), "text"),
                "File": (isinstance(value, str), "the path of a file as text"),
                "Flag": (isinstance(value, bool), "true or false"),
                "Number": (is_number(value), "a number"),
            }[input_.type]
            if input_.integer:
                fits, expected = is_integer(value), "an integer"
            if not fits:
                self.error("wrong-type", f"{id_}: expected {expected}, found {kind_of(value)}", at=id_)
                return
        if is_number(value) and isinstance(value, (int, float)):
            self._check_range(input_, value)

    def _check_range(self, input_: Input, value: float) -> None:
        least, most = input_.minimum, input_.maximum
        if least is not None and (value < least or (input_.exclusive_minimum and value == least)):
            words = "more than" if input_.exclusive_minimum else "at least"
            self.error("out-of-range", f"{input_.id}: expected {words} {least}, found {value}", at=input_.id)
        if most is not None and (value > most or (input_.exclusive_maximum and value == most)):
            words = "less than" if input_.exclusive_maximum else "at most"
            self.error("out-of-range", f"{input_.id}: expected {words} {most}, found {value}", at=input_.id)

    def dependencies(self) -> None:
        groups = {group.id: group for group in self.descriptor.groups}
        for id_, input_ in self.inputs.items():
            if not self.is_active(id_):
                continue
            for other in input_.requires_inputs or ():
                if other not in groups and not self._is_met(other):
                    self.error("requires-input", f"{id_!r} requires {other!r}, which is not given", at=id_)
            self._check_required_groups(input_, groups)
            for other in input_.disables_inputs or ():
                if self.is_active(other):
                    self.error("disables-input", f"{id_!r} does not go with {other!r}, and both are given", at=other)

    def _is_met(self, id_: str) -> bool:
        return id_ in self.values and (not self._is_flag(id_) or self.values[id_] is True)

    def _check_required_groups(self, input_: Input, groups: Mapping[str, Group]) -> None:
        named = [groups[id_] for id_ in input_.requires_inputs or () if id_ in groups and id_ not in self.inputs]
        if input_.type == "Flag" and named:
            # bosh looks for an input of the group's name, which no invocation may have
            message = f"the flag {input_.id!r} requires the group {named[0].id!r}, and a flag can require inputs only"
            self.error("requires-input", message, at=input_.id)
            return
        for group in named[-1:]:  # of several groups bosh looks at the last
            if not any(member in self.values for member in group.members):
                message = f"{input_.id!r} requires one of {', '.join(group.members)} (group {group.id!r}), found none"
                self.error("requires-input", message, at=input_.id)

    def groups(self) -> None:
        for group in self.descriptor.groups:
            active = [member for member in group.members if self.is_active(member)]
            # bosh asks whether the rule is mentioned, and not what it says
            if group.mutually_exclusive is not None and len(active) > 1:
                message = f"only one of {', '.join(group.members)} may be given (group {group.id!r}), found {', '.join(active)}"
                hint = (
                    "" if group.mutually_exclusive else "bosh takes 'mutually-exclusive': false for true; leave it out"
                )
                self.error("mutually-exclusive", message, at=active[1], hint=hint)
            if group.one_is_required and not any(self._is_met(member) for member in group.members):
                message = f"one of {', '.join(group.members)} is required (group {group.id!r}), found none"
                self.error("one-is-required", message)

    def advice(self) -> None:
        """Warn of rules that the descriptor states and bosh does not hold an invocation to."""
        for group in self.descriptor.groups:
            missing = [member for member in group.members if not self.is_active(member)]
            if group.all_or_none and 0 < len(missing) < len(group.members):
                message = f"{', '.join(group.members)} go together (group {group.id!r}); {', '.join(missing)} not given"
                self.report.warn("all-or-none", message)
        for id_, input_ in self.inputs.items():
            chosen = self.values.get(id_)
            if not isinstance(chosen, str):
                continue
            for other in (input_.value_requires or {}).get(chosen, ()):
                if not self._is_met(other):
                    message = f"{id_} = {shown(chosen)} requires {other!r}, which is not given"
                    self.report.warn("value-requires", message, self.places.get(id_, NOWHERE))
            for other in (input_.value_disables or {}).get(chosen, ()):
                if self.is_active(other):
                    message = f"{id_} = {shown(chosen)} does not go with {other!r}, and both are given"
                    self.report.warn("value-disables", message, self.places.get(id_, NOWHERE))
