"""The parameters that many routes share, each described once."""

from __future__ import annotations

from typing import Annotated

from pilotage.model.events import COUNTER_MAX
from pilotage.service.http.routes import in_header, in_path, in_query

LIMIT_MAX = 10_000
WAIT_SECONDS_MAX = 60.0

JobPath = Annotated[str, in_path("The id of the job.")]
LinePath = Annotated[str, in_path("The line within its job: `stage.line`, such as `1.2`.")]
PackagePath = Annotated[str, in_path("The package within its job: `stage.line.n`, such as `1.2.1`.")]
QueryText = Annotated[str, in_query("A query, such as `state=RUNNING and site=lyon`; without it, all.", name="query")]
Limit = Annotated[
    int,
    in_query(
        "Rows of a page at most, never more than the setting `query.page_rows_max`; 0 for its usual number.",
        ge=0,
        le=LIMIT_MAX,
    ),
]
CursorText = Annotated[
    str | None,
    in_query("The `next` of the page before, with the same query; left out for the first."),
]
After = Annotated[int, in_query("Only events behind this position; 0 for all there are.", ge=0, le=COUNTER_MAX)]
AfterStage = Annotated[int, in_query("Only stages behind this one.", name="after", ge=0, le=COUNTER_MAX)]
AfterName = Annotated[
    str,
    in_query("The `next` of the page before: names behind this one.", name="after", max_length=256),
]
WaitSeconds = Annotated[
    float,
    in_query("Where there is nothing yet, wait up to this long for it: a long poll.", ge=0, le=WAIT_SECONDS_MAX),
]
LastEventId = Annotated[
    str | None,
    in_header("Last-Event-ID", "Where a stream of server-sent events was broken off."),
]
