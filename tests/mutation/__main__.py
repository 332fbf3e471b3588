"""`python -m tests.mutation`: draw bugs from every room, see which of them the tests notice, and say which they do not."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random

from tests.mutation.broad import BROAD, HOUSE_RULES
from tests.mutation.covering import Covering, record
from tests.mutation.operators import Mutation, mutations_of
from tests.mutation.trials import Verdict, copy_tree, try_out

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "build" / "mutation"
PROGRAM = Path("src/pilotage")
SHARE_MIN = 0.9
Equivalents = set[tuple[str, str, str]]


def main() -> int:
    """Read the options, try every mutation that is drawn, and print what was found."""
    options = _options()
    rooms = {each.name: each for each in sorted((ROOT / PROGRAM).iterdir()) if (each / "__init__.py").is_file()}
    chosen = options.rooms.split(",") if options.rooms else list(rooms)
    trees = [copy_tree(ROOT, PLACE / f"tree-{number}") for number in range(options.workers)]
    file = PLACE / "lines.sqlite"
    if options.record or not file.is_file():
        begun = time.monotonic()
        record(file, tree=trees[0], workers=options.workers)
        print(f"recorded which test runs which line in {time.monotonic() - begun:.0f} s", flush=True)
    covering = Covering(file, tree=trees[0])
    short = []
    for room in chosen:
        drawn = _draw(rooms[room], count=options.mutants, seed=options.seed)
        verdicts = _try_all(drawn, room=room, trees=trees, covering=covering, broad=options.broad)
        if not _tell(room, verdicts, equivalents=_equivalents()):
            short.append(room)
    if short:
        print(f"fewer than {SHARE_MIN:.0%} were noticed in: {', '.join(short)}")
    return 1 if short else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--rooms", default="", help="folders of the program, with commas between; all unless given")
    parser.add_argument("--mutants", type=int, default=20, help="how many for each room")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws others")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--record", action="store_true", help="note anew which test runs which line")
    parser.add_argument("--no-broad", dest="broad", action="store_false", help="leave the tests of real processes out")
    return parser.parse_args()


def _draw(room: Path, *, count: int, seed: int) -> list[Mutation]:
    """As many mutations as asked for, no two on one line."""
    found = [
        each
        for file in sorted(room.rglob("*.py"))
        for each in mutations_of(str(file.relative_to(ROOT)), file.read_bytes())
    ]
    Random(f"{room.name} {seed}").shuffle(found)
    drawn: dict[tuple[str, int], Mutation] = {}
    for each in found:
        if len(drawn) == count:
            break
        drawn.setdefault((each.path, each.line), each)
    return list(drawn.values())


def _try_all(
    mutations: list[Mutation], *, room: str, trees: list[Path], covering: Covering, broad: bool
) -> list[Verdict]:
    chosen = BROAD.get(room, ()) if broad else ()
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(mutation: Mutation) -> Verdict:
        tree = free.get()
        try:
            recorded = [covering.tests(mutation), covering.program_tests(mutation)]
            return try_out(mutation, tree=tree, tests=recorded, broad=(*HOUSE_RULES, *chosen))
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(one, mutations))


def _tell(room: str, verdicts: list[Verdict], *, equivalents: Equivalents) -> bool:
    """Print the survivors and the share; whether it is enough."""
    count: Counter[str] = Counter()
    for verdict in verdicts:
        mutation = verdict.mutation
        line = (ROOT / mutation.path).read_text(encoding="utf-8").splitlines()[mutation.line - 1].strip()
        if not verdict.survived:
            count["noticed"] += 1
        elif (mutation.path, line, f"{_one_line(mutation.before)} => {mutation.after}") in equivalents:
            count["equivalent"] += 1
        else:
            count["unnoticed"] += 1
            print(f"{mutation.path}:{mutation.line}: {mutation.kind}, run by {verdict.tests} tests: not noticed")
            print(f"    {line}\n    {_one_line(mutation.before)} => {_one_line(mutation.after)}")
    real = count["noticed"] + count["unnoticed"]
    print(f"{room}: {count['noticed']} of {real} noticed, {count['equivalent']} equivalent", flush=True)
    return count["noticed"] >= SHARE_MIN * real


def _equivalents() -> Equivalents:
    found: Equivalents = set()
    for line in Path(__file__).with_name("equivalent.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            path, text, change, _why = (part.strip() for part in line.split(" | ", 3))
            found.add((path, text, change))
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
