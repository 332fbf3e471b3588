"""To look at a book where no service runs is quick: what only runs jobs is not imported for it."""

from __future__ import annotations

import subprocess
import sys


def test_a_book_is_looked_at_without_the_engine_and_the_language() -> None:
    code = (
        "import sys, pilotage.app.service.offline, pilotage.service.http.framework; "
        "print([name for name in ('pilotage.engine', 'pilotage.language', 'numpy') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert printed.strip() == "[]"
