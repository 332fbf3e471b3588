"""Programs that a document names by a path, and that are not there: their packages cannot start."""

from __future__ import annotations

from pilotage.language.expansion.makers import general_pattern
from pilotage.language.folder import Folder
from pilotage.language.reading.document import Document
from pilotage.language.reading.rules import values_in
from pilotage.language.text.paths import tidy_name, why_outside
from pilotage.language.text.patterns import can_both_match, literal
from pilotage.language.text.templates import parse_template
from pilotage.model.definition import Binary, Definition, Package


def warn_of_missing_programs(document: Document, folder: Folder) -> None:
    """Tell of each program such as `./simulate` that is neither in the folder nor made by a package."""
    definition, told = document.definition, set[str]()
    for place, package in values_in(definition):
        if not isinstance(package, Package) or package.container is not None or package.noop or package.done:
            continue
        for number, binary in enumerate(package.binaries):
            field = "run" if binary.run else "invoking_script"
            word = binary.run[0] if binary.run else binary.invoking_script
            program = _named_by_a_path(word)
            if not program or program in told or folder.exists(program) or _is_made(program, definition):
                continue
            told.add(program)
            where = document.report.found(document.mark((*place, "binaries", number, field)), word)
            message = f"the program {word!r} is not there, and no package makes it: the command cannot be started"
            hint = "names are relative to the folder of the document; a program of the PATH is named without a folder"
            document.report.warn("missing-program", message, where, hint=hint)


def _named_by_a_path(word: str) -> str:
    """The file of a program that is named by a path within the folder; empty where it is not."""
    if "/" not in word or "{" in word or word.startswith(("/", "~", "$")) or why_outside(word):
        return ""
    return tidy_name(word)


def _is_made(program: str, definition: Definition) -> bool:
    """Whether a package may make a program, or takes it as an input from wherever it is."""
    for _, binary in values_in(definition):
        if not isinstance(binary, Binary):
            continue
        texts = [output.name or f"{output.folder or '.'}/**" for output in binary.outputs]
        texts += [
            binary.stdout,
            *(given.name for given in binary.inputs if given.locator or given.acquisition == "self"),
        ]
        if any(
            text and can_both_match(tidy_name(general_pattern(parse_template(text))), literal(program))
            for text in texts
        ):
            return True
    return False
