"""Answers queries from an index: of what the asker may read, and only where an index serves the query."""

from __future__ import annotations

import msgspec

from pilotage.model.events.payloads import AccessRule
from pilotage.model.records import RECORD_VERSION, JobRecord
from pilotage.ports.record_index import FoundRecords, Readable, RecordIndex
from pilotage.provenance.index.query import parse, require_index
from pilotage.reading.access import ANY_OWNER, Principal, may_use_record


def answer_query(
    index: RecordIndex, text: str, *, principal: Principal | None, now: float, limit: int, after: str | None
) -> FoundRecords:
    """What a query finds of what a principal may read (None: everything). Raises `QueryError` and `QueryTooBroad`."""
    query = parse(text, attributes=index.attributes, now=now)
    require_index(query, index.attributes)
    readable = None if principal is None else readable_by(principal)
    return index.find(query, readable=readable, limit=limit, after=after)


_ANY_RECORD = JobRecord(version=RECORD_VERSION, job="", revision=1, owner="", name="", state="", made_at=0.0)


def readable_by(principal: Principal) -> Readable | None:
    """What a principal may read of an index; None: everything."""
    if ANY_OWNER in principal.scopes and not principal.is_bound:
        return None

    def may(owner: str, access: tuple[AccessRule, ...]) -> bool:
        return may_use_record(principal, "read", msgspec.structs.replace(_ANY_RECORD, owner=owner, access=access))

    return Readable(owner=principal.user, may=may)
