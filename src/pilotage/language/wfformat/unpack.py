"""Undoes gzip, within a limit: a kilobyte can unpack to a gigabyte."""

from __future__ import annotations

import gzip
import io
import zlib

from pilotage.language.text.tree import Report
from pilotage.language.text.yaml import SIZE_BYTES_MAX

GZIP_MAGIC = b"\x1f\x8b"


def unpack(data: bytes, *, file: str) -> tuple[bytes | None, Report]:
    """The bytes themselves, or what they unpack to if they are gzip-ed; None after noting why they cannot be."""
    report = Report(file)
    if not data.startswith(GZIP_MAGIC):
        return data, report
    if len(data) > SIZE_BYTES_MAX:
        message = f"packed as it is, the document has {len(data):,} bytes; at most {SIZE_BYTES_MAX:,} are read"
        report.error("too-large", message)
        return None, report
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            text = packed.read(SIZE_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as fault:
        message = f"the file begins as gzip and cannot be unpacked: {fault}"
        report.error("bad-gzip", message, hint="it is damaged or cut off; fetch it again")
        return None, report
    if len(text) > SIZE_BYTES_MAX:
        message = f"unpacked, the document has more than {SIZE_BYTES_MAX:,} bytes, and no more are read"
        report.error("too-large", message, hint=f"packed it has only {len(data):,} bytes; is this really an instance?")
        return None, report
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        # Only instances are published packed: whatever else is in there has a reader of its own, for plain text.
        message = "this gzip file holds no WfFormat instance, and nothing else is read packed"
        report.error("not-an-instance", message, hint="unpack it first")
        return None, report
    return text, report
