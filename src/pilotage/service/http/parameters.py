"""The parameters that many routes share, each described once."""

from __future__ import annotations

from typing import Annotated

from litestar.params import HeaderParameter, PathParameter, QueryParameter

from pilotage.model.events import COUNTER_MAX

LIMIT_MAX = 10_000
WAIT_SECONDS_MAX = 60.0

JobPath = Annotated[str, PathParameter(description="The id of the job.")]
LinePath = Annotated[str, PathParameter(description="The line within its job: `stage.line`, such as `1.2`.")]
PackagePath = Annotated[str, PathParameter(description="The package within its job: `stage.line.n`, such as `1.2.1`.")]
QueryText = Annotated[
    str, QueryParameter(name="query", description="A query, such as `state=RUNNING and site=lyon`; without it, all.")
]
Limit = Annotated[
    int,
    QueryParameter(
        ge=0,
        le=LIMIT_MAX,
        description="Rows of a page at most, never more than the setting `query.page_rows_max`; 0 for its usual number.",
    ),
]
CursorText = Annotated[
    str | None,
    QueryParameter(description="The `next` of the page before, with the same query; left out for the first."),
]
After = Annotated[
    int, QueryParameter(ge=0, le=COUNTER_MAX, description="Only events behind this position; 0 for all there are.")
]
AfterStage = Annotated[
    int, QueryParameter(name="after", ge=0, le=COUNTER_MAX, description="Only stages behind this one.")
]
AfterName = Annotated[
    str,
    QueryParameter(name="after", max_length=256, description="The `next` of the page before: names behind this one."),
]
WaitSeconds = Annotated[
    float,
    QueryParameter(
        ge=0,
        le=WAIT_SECONDS_MAX,
        description="Where there is nothing yet, wait up to this long for it: a long poll.",
    ),
]
LastEventId = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", description="Where a stream of server-sent events was broken off."),
]
