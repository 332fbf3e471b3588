"""Values for the parameters of a document: from the command line, a file, or Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotage.model.errors import DocumentError, PilotageError


def chosen_parameters(settings: Sequence[str], file: str | None) -> dict[str, str]:
    """The values of `NAME=VALUE` texts and of a file, by name; the texts win. Raises `PilotageError`."""
    chosen = parameters_of(_in_file(Path(file))) if file else {}
    for text in settings:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise PilotageError(
                f"--set {text!r} sets nothing", expected="NAME=VALUE", next_step="for example  --set seed=7"
            )
        chosen[name.strip()] = value
    return chosen


def parameters_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as texts for a document; raises `PilotageError` for one that is neither a text nor a number."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, bool):
            found[str(name)] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            found[str(name)] = str(value)
        else:
            raise PilotageError(
                f"the parameter {name!r} cannot be {value!r}", expected="a text, a number, or true or false"
            )
    return found


def _in_file(path: Path) -> dict[str, Any]:
    """The content of a file by its extension: JSON, TOML, or YAML."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise PilotageError(f"the parameters cannot be read: {reason}", subject=str(path)) from error
    if path.suffix in (".json", ".toml"):
        import json
        import tomllib

        try:
            values = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
        except ValueError as error:
            raise PilotageError(f"the parameters cannot be read: {error}", subject=str(path)) from error
    else:
        values = _yaml(data, str(path))
    if not isinstance(values, dict):
        raise PilotageError("a file of parameters has a name and a value on each line", subject=str(path))
    return values


def _yaml(data: bytes, file: str) -> dict[str, Any] | None:
    from pilotage.language.text.tree import Scalar, Table
    from pilotage.language.text.yaml import read_tree

    tree, report = read_tree(data, file=file)
    if report.errors:
        raise DocumentError(report.errors)
    if not isinstance(tree, Table):
        return None
    return {key.text: item.text if isinstance(item, Scalar) else item for key, item in tree.entries}
