"""What packages are expected to take, from earlier runs."""

from __future__ import annotations

from typing import Literal

import msgspec

EstimateBasis = Literal["", "document", "activity", "software"]
"""Where a run time is from: the document, earlier runs of the activity in this document, or those of the software anywhere."""


class PackageEstimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a package is expected to take: as the document says, or else from measured runs."""

    run_seconds: float | None = None  # on the standard platform
    basis: EstimateBasis = ""  # of `run_seconds`
    runs: int = 0  # measured ones that `run_seconds` follows from, if they are counted
    input_bytes: int | None = None  # if sizes of inputs matter, and are known or estimated themselves
    output_bytes: int | None = None
    scratch_bytes: int | None = None
    memory_bytes: int | None = None


class EarlierRunTime(msgspec.Struct, frozen=True, kw_only=True):
    """The run time of the packages of an activity, estimated from earlier runs when the job was submitted."""

    activity: str
    mean_seconds: float  # on the standard platform
    sd_seconds: float  # between packages
