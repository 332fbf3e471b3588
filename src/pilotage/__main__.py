"""`python -m pilotage`: the command line. A Python that is too old is told so, and not with what it does not understand."""

from __future__ import annotations

import sys

PYTHON_MIN = (3, 11)

if __name__ == "__main__":
    if sys.version_info < PYTHON_MIN:
        wanted, found = (".".join(map(str, version)) for version in (PYTHON_MIN, sys.version_info[:2]))
        sys.stderr.write(
            f"error: Python {found} is too old: {wanted} or later is needed\n"
            f"  make an environment with a newer one: python{wanted} -m venv …\n"
        )
        sys.exit(2)
    from pilotage.cli import main

    main(prog_name="pilotage")
