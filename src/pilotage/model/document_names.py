"""What a document is called in its folder; apart from the language, since a run looks for one before it reads any."""

from __future__ import annotations

DOCUMENT_NAMES = ("pilotage.yaml", "pilotage.yml", "pilotage.json")
