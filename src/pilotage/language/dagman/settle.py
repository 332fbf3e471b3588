"""Who makes which file. DAGMan does not know, so its files may contradict the graph; here they must not.

A file has one maker; a file that is needed before it is made counts as being there already. What is given up for that
is listed as a loss, and the edge of the DAG stays as `after`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pilotage.language.dagman.drafts import Draft, DraftFile
from pilotage.language.losses import Losses
from pilotage.model.order import find_loop, followers

_ROUNDS_MAX = 20
Edges = Mapping[tuple[int, int], object]


def settle_makers(drafts: Sequence[Draft], edges: Edges, losses: Losses) -> dict[str, int]:
    """Path → the one draft that makes it; the others lose it. `edges` are pairs of drafts."""
    _share_streams(drafts, losses)
    makers: dict[str, int] = {}
    for number, draft in enumerate(drafts):
        needed = {file.path for file in draft.needed()}
        for file in draft.made():
            if file.path in needed:
                _give_up(draft, file.path, losses, f"{file.path!r} is also an input of {draft.package.name!r}")
            elif makers.setdefault(file.path, number) != number:
                first = drafts[makers[file.path]].package.name
                _give_up(draft, file.path, losses, f"{file.path!r} is already made by {first!r}")
    _add_programs(drafts, makers)
    for round_number in range(_ROUNDS_MAX + 1):
        implied = {
            (makers[file.path], number): file.path
            for number, draft in enumerate(drafts)
            for file in draft.needed()
            if file.path in makers and (makers[file.path], number) not in edges
        }
        cycle = find_loop(followers(len(drafts), {**edges, **implied}))
        if not cycle:
            break
        steps = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        # The last round gives up every file that no edge of the DAG stands for: that leaves the DAG alone.
        guilty = [implied[s] for s in steps if s in implied] if round_number < _ROUNDS_MAX else list(implied.values())
        for path in dict.fromkeys(guilty):
            draft = drafts[makers.pop(path)]
            _give_up(draft, path, losses, f"{path!r} is needed before {draft.package.name!r} makes it")
    return makers


def _share_streams(drafts: Sequence[Draft], losses: Losses) -> None:
    """A standard stream that several nodes write to one file is kept with each package instead."""
    writers: Counter[str] = Counter()
    for draft in drafts:
        writers.update({stream.path for stream in (draft.stdout, draft.stderr) if stream is not None})
    for draft in drafts:
        if draft.stdout is not None and writers[draft.stdout.path] > 1:
            _lose_stream(draft.stdout, "output", losses)
            draft.stdout = None
        if draft.stderr is not None and writers[draft.stderr.path] > 1:
            _lose_stream(draft.stderr, "error", losses)
            draft.stderr = None


def _lose_stream(stream: DraftFile, keyword: str, losses: Losses) -> None:
    losses.add(
        keyword,
        f"several nodes write {stream.path!r}; each package keeps its own",
        file=stream.origin.file,
        mark=stream.origin.mark,
    )


def _give_up(draft: Draft, path: str, losses: Losses, reason: str) -> None:
    for file in draft.outputs:
        if file.path == path:
            losses.add("transfer_output_files", reason, file=file.origin.file, mark=file.origin.mark)
    draft.outputs = [file for file in draft.outputs if file.path != path]
    if draft.stdout is not None and draft.stdout.path == path:
        losses.add("output", reason, file=draft.stdout.origin.file, mark=draft.stdout.origin.mark)
        draft.stdout = None
    if draft.stderr is not None and draft.stderr.path == path:
        losses.add("error", reason, file=draft.stderr.origin.file, mark=draft.stderr.origin.mark)
        draft.stderr = None


def _add_programs(drafts: Sequence[Draft], makers: Mapping[str, int]) -> None:
    """A program that another node makes is an input."""
    for number, draft in enumerate(drafts):
        path = draft.command[0].removeprefix("./") if draft.command else ""
        if path in makers and makers[path] != number and all(file.path != path for file in draft.inputs):
            draft.inputs.append(DraftFile(path, draft.origin))
