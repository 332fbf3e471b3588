"""`python -m pilotage`: the command line."""

from __future__ import annotations

from pilotage.cli import main

if __name__ == "__main__":
    main(prog_name="pilotage")
