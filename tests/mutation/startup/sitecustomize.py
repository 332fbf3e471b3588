"""Python imports this at the start of every program of a recorded test: it notes the lines of pilotage that the program runs.

The test's name comes through the environment. Programs that Python starts in isolation (agents at sites) do not come here.
"""

from __future__ import annotations

import os

if os.environ.get("MUTATION_TEST"):
    from program_recorder import record_program

    record_program(test=os.environ["MUTATION_TEST"], folder=os.environ["MUTATION_COVERAGE_FILE"] + "-programs")
