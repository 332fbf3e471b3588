"""pilotage carries a job from its definition to provable results across unreliable sites.

`load` reads and checks a document, `Job` builds one in Python, `run` runs either; `Producer` logs events. Each name is
imported at its first use, so `import pilotage` alone is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotage.model.version import VERSION

if TYPE_CHECKING:
    from pilotage.agent import Producer
    from pilotage.app import load
    from pilotage.app.api import arun, clean, obsolete_files, plan, run, stream, submit
    from pilotage.app.client import Client, Subscription
    from pilotage.app.jobs.results import Output, PackagesFailed, Result
    from pilotage.language import Expansion, LoadedJob
    from pilotage.language.builder import Job
    from pilotage.model.answers import ObsoleteFiles
    from pilotage.model.errors import DocumentError, PilotageError, Problem
    from pilotage.model.jobs.submission import RunPlan

__version__ = VERSION

__all__ = [
    "Client",
    "DocumentError",
    "Expansion",
    "Job",
    "LoadedJob",
    "ObsoleteFiles",
    "Output",
    "PackagesFailed",
    "PilotageError",
    "Problem",
    "Producer",
    "Result",
    "RunPlan",
    "Subscription",
    "__version__",
    "arun",
    "clean",
    "load",
    "obsolete_files",
    "plan",
    "run",
    "stream",
    "submit",
]

_MODULES = {
    "Client": "pilotage.app.client",
    "DocumentError": "pilotage.model.errors",
    "Expansion": "pilotage.language",
    "Job": "pilotage.language.builder",
    "LoadedJob": "pilotage.language",
    "ObsoleteFiles": "pilotage.model.answers",
    "Output": "pilotage.app.jobs.results",
    "PackagesFailed": "pilotage.app.jobs.results",
    "PilotageError": "pilotage.model.errors",
    "Problem": "pilotage.model.errors",
    "Producer": "pilotage.agent",
    "Result": "pilotage.app.jobs.results",
    "RunPlan": "pilotage.model.jobs.submission",
    "Subscription": "pilotage.app.client",
    "arun": "pilotage.app.api",
    "clean": "pilotage.app.api",
    "load": "pilotage.app",
    "obsolete_files": "pilotage.app.api",
    "plan": "pilotage.app.api",
    "run": "pilotage.app.api",
    "stream": "pilotage.app.api",
    "submit": "pilotage.app.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'pilotage' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, including those not imported yet."""
    return sorted({*globals(), *__all__})
