"""Validates mail addresses, without loading the mail modules."""

from __future__ import annotations

import re

ADDRESS_MAX = 254
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")


def is_address(text: str) -> bool:
    """Tell whether a text is one plain mail address, without a display name or anything special in a header."""
    return len(text) <= ADDRESS_MAX and _ADDRESS.fullmatch(text) is not None and ".." not in text
