"""The last forecast of a job, as its row keeps it."""

from __future__ import annotations

import msgspec

from pilotage.model.events.payloads import ForecastMade


class JobForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast, and when it was made."""

    made_at: float
    made: ForecastMade


_decode = msgspec.json.Decoder(JobForecast).decode
_encode = msgspec.json.Encoder().encode


def written_forecast(forecast: JobForecast) -> str:
    """Encode a forecast."""
    return _encode(forecast).decode()


def read_forecast(text: str) -> JobForecast | None:
    """Decode a stored forecast; None if there is none, or if it cannot be read."""
    try:
        return _decode(text) if text else None
    except msgspec.DecodeError:
        return None
