"""The house rules as functions: each takes the texts of some files and returns what breaks the rule, as `file:line: why`.

Rules read text and syntax trees only, so each can be shown a bad snippet; `tests/test_tidy.py` applies them to the tree.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tests.kit.import_circles import imported, module_of

Texts = Mapping[str, str]
"""The text of each file, by its path from the top of the tree."""

IMPURE_MODULES = frozenset({
    "asyncio", "concurrent", "fcntl", "getpass", "glob", "http", "linecache", "mmap", "multiprocessing", "os", "platform",
    "random", "resource", "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
})  # fmt: skip
IMPURE_MEMBERS = {
    "pathlib": {"Path", "PosixPath", "WindowsPath"},
    "io": {"open", "FileIO", "open_code"},
    "numpy": {"random", "load", "save", "savez", "loadtxt", "savetxt", "genfromtxt", "fromfile", "memmap"},
    "sys": {"stdin", "stdout", "stderr", "argv"},
}
IMPURE_BUILTINS = frozenset({"open", "input", "print", "eval", "exec", "__import__"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})

# Written in two halves so that this file does not break its own rules.
LEFTOVER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w./~-])/(work|root)" + r"/")
INDEX = re.compile(
    r"py" + r"pi\.org|python" + r"hosted\.org|:/" + r"/\S*/simple\b|--(extra-)?index" + r"-url|--trusted" + r"-host"
)
REFERENCE_FOLDER = re.compile("shared" + "/data")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

PROGRAM = "src/pilotage/"
NAMED_FILE = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`")
RIDDLING_START = re.compile(r"(What|Who|Whoever|Whatever|Whose|Those|Things) ", re.IGNORECASE)
# Names that modules had, and that nobody could guess the contents from.
RIDDLES = frozenset({
    "aftermath", "bequest", "berth", "broken", "choices", "courtesy", "desk", "door", "entitled", "forsaken", "going_on",
    "growth", "guarding", "happenings", "haunted", "kept", "late", "leaving", "living", "looking", "makers",
    "making", "misc", "nearby", "needs", "noticing", "openings", "parts", "place", "plain", "pressed", "rivals", "rogues",
    "settling", "short", "sight", "standings", "standstill", "strays", "sweeping", "taking", "turns", "unusual", "unused",
    "utils", "helpers", "waking",
})  # fmt: skip

DefinedFunction = ast.FunctionDef | ast.AsyncFunctionDef


def impurities(texts: Texts) -> list[str]:
    """Uses of the clock, randomness, sockets, processes, files or the terminal."""
    return [
        f"{path}:{line}: {what} has no place here: a pure module is given what it needs to know"
        for path, text in texts.items()
        for line, what in _impurities(ast.parse(text, path))
    ]


def _impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    modules: dict[str, str] = {}  # the name a module goes by here → its real name
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in names}
                yield from ((node.lineno, f"import {alias.name}") for alias in names if _is_impure(alias.name))
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    if _is_impure(f"{module}.{alias.name}") or alias.name in IMPURE_MEMBERS.get(module, ()):
                        yield node.lineno, f"from {module} import {alias.name}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                if name in IMPURE_MEMBERS.get(modules.get(owner, ""), ()):
                    yield node.lineno, f"{owner}.{name}"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield node.lineno, f"{name}()"
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCK_METHODS:
                yield node.lineno, f".{name}()"


def _is_impure(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:count]) in IMPURE_MODULES for count in range(1, len(parts) + 1))


def too_long(texts: Texts, *, lines_max: int) -> list[str]:
    """Files of more lines than a reader keeps in mind."""
    return [
        f"{path}:{count}: {count} lines, at most {lines_max}: a file is one idea"
        for path, text in texts.items()
        if (count := text.count("\n")) > lines_max
    ]


def leftovers(texts: Texts) -> list[str]:
    """Notes to do something later, which belong into an issue."""
    return _matches(texts, LEFTOVER, "do it now or open an issue")


def machine_paths(texts: Texts) -> list[str]:
    """Paths that exist on one machine only."""
    return _matches(texts, MACHINE_PATH, "a path of one machine")


def index_hosts(texts: Texts) -> list[str]:
    """Package indexes: which one is used is a setting of the machine, not of the project."""
    return _matches(texts, INDEX, "names a package index, which is for the machine's own settings to choose")


def reference_folders(texts: Texts) -> list[str]:
    """Mentions of where the reference data lies; tests read it through the environment."""
    return _matches(texts, REFERENCE_FOLDER, "only .ci/run names that folder; others read PILOTAGE_REFERENCE_DATA")


def _matches(texts: Texts, pattern: re.Pattern[str], why: str) -> list[str]:
    return [
        f"{path}:{number}: {match.group(0)!r}: {why}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern.finditer(line)
    ]


def folders_without_sentence(texts: Texts) -> list[str]:
    """Folders whose `__init__.py` does not begin with a sentence, or begins with a riddle ("What …", "Whoever …")."""
    found = []
    for path, text in texts.items():
        if not path.endswith("__init__.py"):
            continue
        first = (ast.get_docstring(ast.parse(text, path)) or "").partition("\n")[0]
        if not first.endswith(".") or len(first.split()) < 3:
            found.append(f"{path}:1: a folder's __init__.py says in a sentence what it hides")
        elif RIDDLING_START.match(first):
            found.append(f"{path}:1: {first.split()[0]!r} begins a riddle: name the thing, or say what it does")
    return found


def crowded(texts: Texts, *, modules_max: int) -> list[str]:
    """Folders of more modules than a reader can keep in mind."""
    folders = Counter(path.rpartition("/")[0] for path in texts if not path.endswith("/__init__.py"))
    return [
        f"{folder}/__init__.py:1: {count} modules, at most {modules_max}: a folder is one room"
        for folder, count in sorted(folders.items())
        if count > modules_max
    ]


def closed_doors(texts: Texts) -> list[str]:
    """Modules that others import though their folder's `__all__` does not name them, and names in it that do not exist.

    A folder whose `__init__.py` imports something is a face: its `__all__` names what it offers, and only has to be there.
    """
    modules = {module_of(path): path for path in texts}
    folders = {name: path for name, path in modules.items() if path.endswith("__init__.py")}
    offered, found = {}, []
    for name, path in folders.items():
        tree = ast.parse(texts[path], path)
        names = _offered(tree)
        if names is None:
            found.append(f"{path}:1: the folder has no __all__: it names the modules that others may use")
        elif not any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)):
            offered[name] = names
            gone = sorted(each for each in names if f"{name}.{each}" not in modules)
            found += [f"{path}:1: __all__ names {each}, and there is no such module" for each in gone]
    missing = {
        (folder, module)
        for importer, path in modules.items()
        for target in imported(texts[path], modules)
        for folder, module in _doors(target)
        if folder in offered and importer != folder and not importer.startswith(f"{folder}.")
        if module not in offered[folder]
    }
    return found + [
        f"{folders[folder]}:1: others import {module}, so __all__ names it, or they import another"
        for folder, module in sorted(missing)
    ]


def _offered(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def _doors(module: str) -> Iterator[tuple[str, str]]:
    """Every folder on the way to a module, and what is asked for there."""
    parts = module.split(".")
    yield from ((".".join(parts[:count]), parts[count]) for count in range(1, len(parts)))


def missing_files(pages: Texts, paths: Iterable[str]) -> list[str]:
    """Files and folders that pages name, from the top of the tree or of the program, and that are not there."""
    known = {path.removeprefix(PROGRAM) for path in paths} | set(paths)
    known |= {path[: end + 1] for path in known for end, sign in enumerate(path) if sign == "/"}
    return [
        f"{page}:{number}: {name}: no such file, from the top of the tree or from {PROGRAM}"
        for page, text in pages.items()
        for number, line in enumerate(text.splitlines(), 1)
        for name in NAMED_FILE.findall(line)
        if name not in known and name != "__init__.py"
    ]


def riddles(texts: Texts) -> list[str]:
    """Modules with a name that says nothing of what is in them."""
    return [
        f"{path}:1: {name!r} is a riddle: what would HTCondor, Slurm or a database book call it?"
        for path in texts
        if (name := path.rpartition("/")[2].removesuffix(".py")) in RIDDLES
    ]


def unused_words(glossary: str, texts: Texts) -> list[str]:
    """Words that a glossary explains and nothing else uses."""
    written = " ".join(text.lower().replace("_", " ") for text in texts.values())
    rows = (re.match(r"\| ([a-z ,]+) \|", line) for line in glossary.splitlines())
    words = [word for row in rows if row for word in row.group(1).split(", ")]
    return [
        f"docs/GLOSSARY.md:1: {word!r} is explained, and nobody uses it"
        for word in words
        if not re.search(rf"\b{re.escape(word)}s?\b", written)
    ]


def undocumented(texts: Texts) -> list[str]:
    """Public modules, classes and functions without docstring."""
    found = []
    for path, text in texts.items():
        tree = ast.parse(text, path)
        if not ast.get_docstring(tree):
            found.append(f"{path}:1: the module has no docstring")
        found += [
            f"{path}:{node.lineno}: {node.name} has no docstring"
            for node in _public(tree)
            if not ast.get_docstring(node) and not _speaks_for_another(node)
        ]
    return found


def untyped(texts: Texts) -> list[str]:
    """Public functions with an argument or a result that has no type."""
    found = []
    for path, text in texts.items():
        for node in _public(ast.parse(text, path)):
            if isinstance(node, ast.ClassDef):
                continue
            each = node.args
            named = [*each.posonlyargs, *each.args, *each.kwonlyargs, each.vararg, each.kwarg]
            missing = [one.arg for one in named if one and not one.annotation and one.arg not in ("self", "cls")]
            missing += ["the result"] if node.returns is None else []
            if missing:
                found.append(f"{path}:{node.lineno}: {node.name} has no type for {', '.join(missing)}")
    return found


def _public(tree: ast.Module | ast.ClassDef) -> Iterator[DefinedFunction | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, DefinedFunction | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _speaks_for_another(node: DefinedFunction | ast.ClassDef) -> bool:
    """Overloads and setters are documented where the function or the property is."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"overload", "setter", "override"})


def said_task(texts: Texts) -> list[str]:
    """Identifiers that say "task" where this project says package."""
    return [
        f"{path}:{getattr(node, 'lineno', 1)}: {name}: the word here is package (or attempt)"
        for path, text in texts.items()
        if _has_word(text, "task")
        for node in ast.walk(ast.parse(text, path))
        for name in _identifiers(node)
        if {"task", "tasks"} & {word.lower() for word in WORD.findall(name)}
    ]


def _has_word(text: str, word: str) -> bool:
    """Whether a text has a word at all, as Python reads names: only then it is worth to look where."""
    return word in unicodedata.normalize("NFKC", text).lower()


def _identifiers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
            yield name
        case _:
            pass


def sleeps(texts: Texts) -> list[str]:
    """Tests that wait for time to pass instead of for what they wait for."""
    return [
        f"{path}:{node.lineno}: wait on the event, or use the virtual clock"
        for path, text in texts.items()
        if _has_word(text, "sleep")
        for node in ast.walk(ast.parse(text, path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "sleep"
    ]


def unpinned(constraints: str, *, required: list[str]) -> list[str]:
    """Lines of a constraints file that are not plain pins, and requirements that no line pins."""
    found, pinned = [], set()
    for number, line in enumerate(constraints.splitlines(), 1):
        if pin := re.fullmatch(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.!]+", line):
            pinned.add(_normal(pin.group(1)))
        else:
            found.append(f"constraints.txt:{number}: {line!r} is not name==version")
    names = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in required)
    missing = sorted({_normal(name.group(0)) for name in names if name} - pinned)
    return found + [f"constraints.txt:1: {name} is required by pyproject.toml but not pinned" for name in missing]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def strangers(parts: list[str], *, contracts: list[dict[str, object]]) -> list[str]:
    """Packages and modules of the house that no import contract speaks of."""
    layered: set[str] = set()
    protected: set[str] = set()
    for contract in contracts:
        for line in _strings(contract.get("layers")):
            layered |= {name.strip(" ()") for name in re.split(r"[|:]", line)}
        protected |= {name.removeprefix("pilotage.") for name in _strings(contract.get("protected_modules"))}
    found = [
        f"pyproject.toml:1: {part} is in no layer of the import contracts" for part in parts if part not in layered
    ]
    return found + [
        f"pyproject.toml:1: no protected contract says who may import {part}"
        for part in parts
        if part in layered - protected - {"model", "cli"}
    ]


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
