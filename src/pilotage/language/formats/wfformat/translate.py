"""Translates an instance to a definition: one line with one package for each task, in stages by depth."""

from __future__ import annotations

import math
from datetime import datetime

from pilotage.language.folder import Folder
from pilotage.language.formats.wfformat.instance import (
    Files,
    Instance,
    LocatedNumber,
    LocatedText,
    Task,
    TaskExecution,
    without_counter,
)
from pilotage.language.formats.wfformat.schema import LossTally
from pilotage.language.text.names import job_name_like, plural
from pilotage.language.text.templates import escape_braces
from pilotage.language.text.tree import Report
from pilotage.model.jobs.definition import Binary, Definition, InputFile, Line, OutputFile, Package, Resources, Stage
from pilotage.model.jobs.graph import depths, followers

_EXECUTED = "workflow.execution.tasks"
_SHOWN_MAX = 3

Edges = list[list[int]]  # for each task, the tasks it follows


def translate(instance: Instance, files: Files, *, folder: Folder, report: Report, tally: LossTally) -> Definition:
    """The definition of an instance."""
    translation = _Translation(instance, files, folder=folder, report=report, tally=tally)
    return translation.definition()


class _Translation:
    """The state of one translation."""

    def __init__(self, instance: Instance, files: Files, *, folder: Folder, report: Report, tally: LossTally) -> None:
        self._instance = instance
        self._files = files
        self._folder = folder
        self._report = report
        self._tally = tally
        self._outside: dict[str, LocatedText] = {}

    def definition(self) -> Definition:
        """The whole job; warnings are summarized at the end."""
        instance = self._instance
        by_files = [self._makers_of(number, task) for number, task in enumerate(instance.tasks)]
        numbers = {task.id.text: number for number, task in enumerate(instance.tasks)}
        declared = [[numbers[parent] for parent in task.parents] for task in instance.tasks]
        packages = [self._package(n, self._after(n, by_files, declared)) for n in range(len(instance.tasks))]
        edges = {(p, n) for side in (by_files, declared) for n, parents in enumerate(side) for p in parents}
        # Tasks in a cycle keep the depth found so far; the expansion will report the cycle.
        deep = depths(followers(len(packages), edges))
        lines: dict[int, list[Line]] = {}
        for depth, package in zip(deep, packages, strict=True):
            lines.setdefault(depth, []).append(Line(packages=(package,)))
        self._note_unused_files()
        self._warn(by_files, declared)
        return Definition(
            job=self._job_name(),
            created=self._created(),
            description=instance.description,
            stages=tuple(Stage(lines=tuple(lines[depth])) for depth in sorted(lines)),
        )

    # --- the head ---------------------------------------------------------------------------------------------------

    def _job_name(self) -> str:
        title = self._instance.name
        name = job_name_like(title.text, otherwise="workflow")
        if name != title.text:
            reason = f"a job cannot be called {title.text[:200]!r}; it is called {name!r}"
            self._tally.add("name", reason, title.mark)
        return name

    def _created(self) -> str:
        created = self._instance.created
        if created is None:
            return ""
        try:
            zone = datetime.fromisoformat(created.text).tzinfo
        except ValueError:
            self._tally.add("createdAt", f"{created.text[:60]!r} is not an ISO 8601 time", created.mark)
            return ""
        if zone is None:
            self._tally.add("createdAt", f"{created.text!r} has no time zone, so the time is not known", created.mark)
            return ""
        return created.text

    # --- edges ------------------------------------------------------------------------------------------------------

    def _makers_of(self, number: int, task: Task) -> list[int]:
        """The producers of a task's inputs, without the task itself."""
        found = (self._files.makers.get(self._files.name(file)) for file in task.inputs)
        return list(dict.fromkeys(maker for maker in found if maker is not None and maker != number))

    def _after(self, number: int, by_files: Edges, declared: Edges) -> tuple[str, ...]:
        """The names of the packages that a task follows without taking a file from them."""
        known = set(by_files[number])
        return tuple(escape_braces(self._instance.tasks[p].id.text) for p in declared[number] if p not in known)

    # --- packages ---------------------------------------------------------------------------------------------------

    def _package(self, number: int, after: tuple[str, ...]) -> Package:
        task = self._instance.tasks[number]
        executed = task.executed or TaskExecution(program=None, arguments=(), numbers={})
        activity = self._activity(task, executed)
        return Package(
            name=escape_braces(task.id.text),
            activity=activity,
            resources=Resources(cores=self._cores(executed), memory_bytes=self._memory(executed)),
            priority=self._priority(executed),
            after=after,
            binaries=(self._binary(number, executed, activity),),
        )

    def _activity(self, task: Task, executed: TaskExecution) -> str:
        """The activity of a task: its name, unless that is just its id."""
        if self._instance.own or task.name != task.id.text:
            return task.name
        program = executed.program.text if executed.program else ""
        if program and not _is_script(program, executed.arguments):
            return program.rstrip("/").rpartition("/")[2] or program
        return without_counter(task.name)

    def _binary(self, number: int, executed: TaskExecution, activity: str) -> Binary:
        task = self._instance.tasks[number]
        run: tuple[str, ...] = ()
        shell = ""
        program = executed.program
        if program is None:
            run = (activity, *executed.arguments)
            reason = "no program is given: the name of the task is used instead"
            self._tally.add(f"{_EXECUTED}.command.program", reason, task.id.mark)
        elif not self._instance.own and _is_script(program.text, executed.arguments):
            shell = escape_braces(program.text)
        else:
            run = (program.text, *executed.arguments)
        return Binary(
            run=tuple(map(escape_braces, run)),
            shell=shell,
            inputs=self._inputs(number),
            outputs=self._outputs(task),
            cpu_percent=self._cpu_percent(executed),
            run_time_seconds=self._run_time(executed),
        )

    def _inputs(self, number: int) -> tuple[InputFile, ...]:
        found: dict[str, InputFile] = {}
        for file in self._instance.tasks[number].inputs:
            name = self._files.name(file)
            # A task that changes a file needs it from elsewhere first.
            made = self._files.makers.get(name, number) != number
            here = made or self._folder.exists(name)
            if not here:
                self._outside.setdefault(name, file)
            found.setdefault(
                name,
                InputFile(
                    name=escape_braces(name),
                    locator="" if here else escape_braces(self._files.locator(file)),
                    size_bytes=self._files.size_bytes(file),
                    acquisition="" if here else "self",
                ),
            )
        return tuple(found.values())

    def _outputs(self, task: Task) -> tuple[OutputFile, ...]:
        found: dict[str, OutputFile] = {}
        for file in task.outputs:
            name = self._files.name(file)
            size = self._files.size_bytes(file)
            found.setdefault(name, OutputFile(name=escape_braces(name), size_bytes=size))
        return tuple(found.values())

    # --- numbers ----------------------------------------------------------------------------------------------------

    def _cores(self, executed: TaskExecution) -> float:
        given = executed.numbers.get("coreCount")
        return given.value if given else 1

    def _memory(self, executed: TaskExecution) -> int | None:
        given = self._not_negative(executed, "memoryInBytes")
        return math.ceil(given.value) if given else None

    def _run_time(self, executed: TaskExecution) -> float | None:
        given = self._not_negative(executed, "runtimeInSeconds")
        if given is None or (self._instance.own and not given.value):  # our own exports write 0 for "unknown"
            return None
        return float(given.value)

    def _cpu_percent(self, executed: TaskExecution) -> float | None:
        given = self._not_negative(executed, "avgCPU")
        if given is None:
            return None
        if given.value > 100:
            reason = "it used more than one CPU, but a share here is at most 100 percent, which is used"
            self._tally.add(f"{_EXECUTED}.avgCPU", reason, given.mark)
        return min(100.0, float(given.value))

    def _priority(self, executed: TaskExecution) -> int | None:
        given = executed.numbers.get("priority")
        if given is None:
            return None
        if given.value != int(given.value):
            self._tally.add(f"{_EXECUTED}.priority", "a priority is a whole number here", given.mark)
            return None
        return int(given.value)

    def _not_negative(self, executed: TaskExecution, word: str) -> LocatedNumber | None:
        given = executed.numbers.get(word)
        if given is not None and given.value < 0:
            self._tally.add(f"{_EXECUTED}.{word}", "it is negative", given.mark)
            return None
        return given

    # --- what is said in the end ------------------------------------------------------------------------------------

    def _note_unused_files(self) -> None:
        used = {file.text for task in self._instance.tasks for file in (*task.inputs, *task.outputs)}
        for text, size in self._instance.sizes.items():
            if text not in used:
                self._tally.add("workflow.specification.files", "no task reads or makes the file", size.mark)

    def _warn(self, by_files: Edges, declared: Edges) -> None:
        tasks = self._instance.tasks
        if self._outside:
            message = (
                f"{_counted(len(self._outside), 'input')} made by no other task and not in the folder: "
                f"{_first_of(list(self._outside))}; acquisition is self, so the program must fetch them"
            )
            self._report.warn("input-from-outside", message, next(iter(self._outside.values())).mark)
        declared_sets = [set(parents) for parents in declared]
        silent = [(m, n) for n, makers in enumerate(by_files) for m in makers if m not in declared_sets[n]]
        if silent:
            pairs = [f"{tasks[maker].id.text} → {tasks[number].id.text}" for maker, number in silent[:_SHOWN_MAX]]
            message = f"{_counted(len(silent), 'edge')} implied by files and not among 'parents': {_first_of(pairs, len(silent))}"
            self._report.warn("edge-not-declared", message, tasks[silent[0][1]].id.mark)
        one_sided = self._instance.one_sided
        if one_sided:
            pairs = [f"{parent} → {child}" for parent, child in one_sided[:_SHOWN_MAX]]
            message = f"{_counted(len(one_sided), 'edge')} in only one of 'parents' and 'children': {_first_of(pairs, len(one_sided))}"
            self._report.warn("one-sided-edge", message)


def _is_script(program: str, arguments: tuple[str, ...]) -> bool:
    """Whether a program is in fact a shell script, as in traces of Nextflow."""
    return not arguments and any(character.isspace() for character in program)


def _counted(count: int, noun: str) -> str:
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"


def _first_of(names: list[str], count: int | None = None) -> str:
    shown = ", ".join(name[:200] for name in names[:_SHOWN_MAX])
    return f"{shown}, …" if (count or len(names)) > _SHOWN_MAX else shown
