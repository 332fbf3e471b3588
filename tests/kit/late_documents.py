"""Documents with late stages: their first stage makes files that nobody can name beforehand, the others are over these."""

from __future__ import annotations

SPLIT = """\
  - name: split
    shell: for n in 1 2; do echo $n > part-$n.txt; done
    outputs: [part-*.txt]
"""
"""The stage that makes `part-1.txt` and `part-2.txt`."""


def late_document(job: str, *stages: str, before: str = "") -> str:
    """A document of which `stages` follow the one that makes the parts; `before` stands before it."""
    return "".join([f"pilotage: 1\njob: {job}\nstages:\n", before, SPLIT, *stages])
