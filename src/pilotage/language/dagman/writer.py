"""An expanded job to a DAG file and submit files, as the DØ job definition describes: the way out.

`Job Stage1Line1Package1Reco reco.sub`, and PARENT and CHILD lines that follow from who makes and who needs which file.
What differs between packages of one kind stands in VARS lines, so that they share a submit file.
"""

from __future__ import annotations

import itertools
import re

from pilotage.language.dagman.activity import activity_of_command
from pilotage.language.dagman.describe import Described, describe
from pilotage.language.dagman.export_losses import list_fields
from pilotage.language.dagman.submit_text import protected, variable
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.late_edges import edges_across
from pilotage.language.expansion.packages import ConcretePackage
from pilotage.language.losses import Losses
from pilotage.language.text.names import FreeNames
from pilotage.model.definition import Package, Script

_KEYWORDS = {"work": "JOB", "final": "FINAL", "provisioner": "PROVISIONER", "service": "SERVICE"}
_SUFFIX_MAX = 60


def write_dagman(expansion: Expansion) -> tuple[dict[str, str], Losses]:
    """The DAG file and its submit files, by path, and what could not be said in them."""
    return _Writer(expansion).write()


def node_name(package: ConcretePackage) -> str:
    """The name of a package's node, which tells its place: `Stage1Line1Package1Reco`."""
    words = re.findall(r"[A-Za-z0-9]+", package.activity)
    suffix = "".join(word[0].upper() + word[1:] for word in words).lstrip("0123456789")[:_SUFFIX_MAX]
    place = package.id
    return f"Stage{place.stage}Line{place.line}Package{place.number}{suffix}"


class _Writer:
    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._losses = Losses()
        self._files: dict[str, str] = {}
        self._submit_of: dict[str, str] = {}
        self._stems = FreeNames(separator="~")
        self._lines: list[str] = []
        self._only: dict[str, int] = {}
        self._late_finals: list[int] = []
        self._apart: dict[int, str] = {}  # nodes that can have neither parents nor children, with their keywords

    def write(self) -> tuple[dict[str, str], Losses]:
        definition = self._expansion.definition
        list_fields(definition, self._losses, place=definition.job)
        across = self._edges_across()
        for stage in definition.stages:
            if any(line.early_start for line in stage.lines):
                self._lose("early_start", "DAGMan starts a node when its parents are done", definition.job)
        names = []
        for package in self._expansion.packages():
            names.append(node_name(package))
            self._node(package, names[-1])
        self._edges(names, across)
        for category, limit in definition.limits.items():
            if self._is_word(category):
                self._lines.append(f"MAXJOBS {category} {limit}")
        dag = f"# {definition.job}, written by pilotage\n" + "\n".join(self._lines) + "\n"
        return {f"{definition.job}.dag": dag, **self._files}, self._losses

    def _edges_across(self) -> list[tuple[int, int]]:
        """The edges that stand for stages without packages, which are listed as lost."""
        if not self._expansion.late:
            return []
        edges = edges_across(self._expansion)
        order = "what waits for it follows the packages before it: the exact order behind it is lost"
        if edges is None:
            order = "what waits for it waits for nothing in its place"
        for late in self._expansion.late:
            reason = f"the stage {late.name!r} is left out, its list is not known yet; {order}"
            self._lose("each", reason, self._expansion.definition.job)
        return edges or []

    def _lose(self, keyword: str, reason: str, place: str) -> None:
        self._losses.add(keyword, reason, file=place)

    @staticmethod
    def _is_word(text: str) -> bool:
        return re.fullmatch(r"[^\s\"'#\\]+", text) is not None

    def _node(self, package: ConcretePackage, name: str) -> None:
        declared = package.declared
        list_fields(declared, self._losses, place=package.path)
        options = (" NOOP" if declared.noop else "") + (" DONE" if declared.done else "")
        keyword = self._keyword(package)
        variables: dict[str, str] = {}
        unsaid = self._of_its_stage(package)  # the activity that a reader takes from elsewhere where none is written
        written = ""  # the one that the node's submit file is named after
        if package.subjob:
            if not package.subjob.endswith(".dag"):
                self._lose("subjob", f"{package.subjob!r}: only a DAG file can be a SUBDAG", package.path)
            self._lines.append(f'SUBDAG EXTERNAL {name} "{_quoted(package.subjob)}"{options}')
        elif not package.binaries and not package.startup:
            self._lines.append(f"{keyword} {name} none{options}")
        else:
            described = describe(package, node=name, losses=self._losses)
            submit = self._submit_file(package, described)
            variables.update(described.variables)
            self._lines.append(f"{keyword} {name} {submit}{options}")
            unsaid = activity_of_command(_command(package, name))
            written = submit.removesuffix(".sub")
        wanted = declared.activity or ("" if unsaid == package.activity else package.activity)
        if wanted != ("" if written == unsaid else written):
            self._say("activity", wanted, variables, place=package.path)
        self._say("name", package.name, variables, place=package.path)
        pairs = " ".join(variable(key, value) for key, value in variables.items())
        if pairs:
            self._lines.append(f"VARS {name} {pairs}")
        self._properties(package, name, declared)

    def _keyword(self, package: ConcretePackage) -> str:
        """The command that makes the node; a second FINAL or PROVISIONER is not possible and becomes a JOB."""
        role = package.declared.role
        if role in ("final", "provisioner") and self._only.setdefault(role, package.number) != package.number:
            self._lose("role", f"a DAG has one {role.upper()} node; this one becomes a JOB", package.path)
            if role == "final":
                self._late_finals.append(package.number)
            return "JOB"
        if role != "work":
            self._apart[package.number] = _KEYWORDS[role]
        return _KEYWORDS[role]

    def _submit_file(self, package: ConcretePackage, described: Described) -> str:
        self._files.update(described.scripts)
        known = self._submit_of.get(described.submit)
        if known is None:
            stem = re.sub(r"[^A-Za-z0-9._-]", "_", package.activity).lstrip(".-") or "package"
            known = f"{self._stems.take(stem)}.sub"
            self._submit_of[described.submit] = known
            self._files[known] = described.submit
        return known

    def _of_its_stage(self, package: ConcretePackage) -> str:
        """The activity of a package without a command: its stage's, which only comes back where nobody chose it."""
        stage = self._expansion.definition.stages[package.id.stage - 1]
        return "" if stage.name or self._expansion.late else package.activity

    def _say(self, keyword: str, text: str, variables: dict[str, str], *, place: str) -> None:
        """Keep a package's name or activity in a variable."""
        if "\n" in text:
            self._lose(keyword, f"{text!r} cannot stand in a DAG file", place)
        else:
            variables[f"pilotage_{keyword}"] = protected(text)

    def _properties(self, package: ConcretePackage, name: str, declared: Package) -> None:
        for kind in ("pre", "post", "hold"):
            script: Script | None = getattr(package.scripts, kind)
            if script is not None:
                self._script(package, name, kind.upper(), script)
        if package.scripts.skip_exit_code is not None:
            self._lines.append(f"PRE_SKIP {name} {package.scripts.skip_exit_code}")
        self._retry(package, name, declared)
        if declared.priority is not None:
            self._lines.append(f"PRIORITY {name} {declared.priority}")
        if declared.category:
            if self._is_word(declared.category):
                self._lines.append(f"CATEGORY {name} {declared.category}")
            else:
                self._lose("category", f"{declared.category!r} cannot stand in a DAG file", package.path)
        if declared.abort_on is not None:
            result = "" if declared.abort_on.result is None else f" RETURN {declared.abort_on.result}"
            self._lines.append(f"ABORT-DAG-ON {name} {declared.abort_on.exit_code}{result}")

    def _script(self, package: ConcretePackage, name: str, kind: str, script: Script) -> None:
        words = script.run
        if any(not word or re.search(r"\s", word) for word in words) or words[-1].endswith("\\"):
            self._lose(
                "scripts", f"the {kind} script is left out: an argument is empty or has white space", package.path
            )
            return
        defer = ""
        if script.defer_exit_code is not None and script.defer_seconds is not None:
            seconds = -int(-script.defer_seconds // 1)
            defer = f"DEFER {script.defer_exit_code} {seconds} "
        if (script.defer_exit_code is None) != (script.defer_seconds is None) or (
            script.defer_seconds is not None and script.defer_seconds % 1
        ):
            self._lose("defer_seconds", "DEFER takes an exit code and whole seconds", package.path)
        self._lines.append(f"SCRIPT {defer}{kind} {name} {' '.join(words)}")

    def _retry(self, package: ConcretePackage, name: str, declared: Package) -> None:
        retry = declared.retry
        first = retry.rules[0] if retry.rules else None
        is_unless = first is not None and first.exit_code is not None and first.action == "give-up" and not first.times
        sayable = not retry.rules or (len(retry.rules) == 1 and is_unless and retry.attempts_max is not None)
        if not sayable:
            self._lose("retry", "RETRY takes a number and one exit code that gives up", package.path)
        if retry.attempts_max is None:
            return
        unless = f" UNLESS-EXIT {first.exit_code}" if first is not None and is_unless else ""
        if declared.role == "work":
            self._lines.append(f"RETRY {name} {retry.attempts_max - 1}{unless}")
        else:
            self._lose("retry", f"a {declared.role} node is not retried", package.path)

    def _edges(self, names: list[str], across: list[tuple[int, int]]) -> None:
        children: dict[int, list[int]] = {}
        known = ((parent, child) for parent, child, _ in self._expansion.graph.edges())
        for parent, child in itertools.chain(known, across):
            if parent in self._apart or child in self._apart:
                self._lose_edge(parent, child)
            else:
                children.setdefault(parent, []).append(child)
        if self._late_finals:
            ends = [
                p.number for p in self._expansion.packages() if p.declared.role == "work" and p.number not in children
            ]
            for parent in ends:
                children[parent] = self._late_finals
        for parent in sorted(children):
            targets = " ".join(names[child] for child in sorted(set(children[parent])))
            self._lines.append(f"PARENT {names[parent]} CHILD {targets}")

    def _lose_edge(self, parent: int, child: int) -> None:
        """An edge at a node that stands apart: lost, unless the node comes first or last anyway."""
        if self._apart.get(child) != "FINAL" and self._apart.get(parent) != "PROVISIONER":
            apart = parent if parent in self._apart else child
            reason = f"a {self._apart[apart]} node can have neither parents nor children"
            self._lose("role", reason, self._expansion.path(apart))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _command(package: ConcretePackage, node: str) -> tuple[str, ...]:
    """The command that a reader of the package's submit file finds."""
    if package.startup:
        return package.startup
    return package.binaries[0].argv if len(package.binaries) == 1 else (f"{node}.sh",)
