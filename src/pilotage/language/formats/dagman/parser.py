"""Parses a DAG file into commands. A line that cannot be parsed is reported, and the following lines are still read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypedDict

import msgspec

from pilotage.language.formats.dagman import lexer
from pilotage.language.formats.dagman.lexer import Cursor, Fault, Line, LineReader, Word, without_content
from pilotage.language.text.tree import Mark, Report
from pilotage.model.errors import did_you_mean

# The commands that define nodes or include files, and helpers of all command parsers.

RESERVED_NAMES = frozenset({"PARENT", "CHILD", "ALL_NODES"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,12}")
_LEAST, _MOST = -(2**31), 2**31 - 1


class CommandFields(TypedDict):
    """The fields that all commands have."""

    keyword: str
    file: str
    mark: Mark


class ParsedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line whose keyword is already read."""

    cursor: Cursor
    reader: LineReader
    keyword: str
    file: str
    mark: Mark

    @property
    def place(self) -> CommandFields:
        """The fields that all commands have."""
        return {"keyword": self.keyword, "file": self.file, "mark": self.mark}


def same_keyword(text: str, keyword: str) -> bool:
    """Whether a word is this keyword; case does not matter, and `-` equals `_`."""
    return text.upper().replace("-", "_") == keyword.replace("-", "_")


def required(word: Word | None, cursor: Cursor, expected: str) -> Word:
    """The word; raises a `Fault` that says what was expected if there is none."""
    if word is None or not word.text:
        raise Fault("missing-word", f"expected {expected}, found the end of the line", cursor.line.mark)
    return word


def number(cursor: Cursor, expected: str, *, least: int = _LEAST, most: int = _MOST) -> int:
    """The next word as an integer between two bounds."""
    word = required(cursor.word(), cursor, expected)
    value = int(word.text) if _INTEGER.fullmatch(word.text) else None
    if value is None or not least <= value <= most:
        bounds = "" if (least, most) == (_LEAST, _MOST) else f" from {least}" + (f" to {most}" if most != _MOST else "")
        raise Fault("bad-number", f"expected {expected}, an integer{bounds}, found {word.text!r}", word.mark)
    return value


def refuse_rest(line: ParsedLine) -> None:
    """Raise a `Fault` if anything follows."""
    word = line.cursor.word()
    if word is not None:
        raise Fault("unexpected-word", f"expected the end of the line, found {word.text!r}", word.mark)


def parse_node(line: ParsedLine) -> lexer.Command:
    """JOB, FINAL, PROVISIONER, SERVICE."""
    kind: lexer.NodeKind = "job"
    if line.keyword == "FINAL":
        kind = "final"
    elif line.keyword == "PROVISIONER":
        kind = "provisioner"
    elif line.keyword == "SERVICE":
        kind = "service"
    return _node(line, kind)


def parse_subdag(line: ParsedLine) -> lexer.Command:
    """SUBDAG EXTERNAL."""
    word = line.cursor.word()
    if word is None or not same_keyword(word.text, "EXTERNAL"):
        raise Fault("missing-word", "expected EXTERNAL after SUBDAG", word.mark if word else line.mark)
    return _node(line, "subdag")


def _node(line: ParsedLine, kind: lexer.NodeKind) -> lexer.Command:
    cursor = line.cursor
    name = required(cursor.word(), cursor, "the name of a node")
    word = required(cursor.unquoted(), cursor, "a DAG file" if kind == "subdag" else "a submit description")
    description: Word | lexer.Inline = word
    # The inline text is read before the name is checked, so that its lines are not parsed as commands after a bad name.
    if kind != "subdag" and (end := _inline_end(word)) is not None:
        description, cursor = _inline(line, word, end=end)
    _check_name(name)
    directory, noop, done = "", False, False
    while (option := cursor.word()) is not None:
        if same_keyword(option.text, "NOOP"):
            noop = True
        elif same_keyword(option.text, "DONE"):
            done = True
        elif same_keyword(option.text, "DIR"):
            directory = required(cursor.unquoted(), cursor, "a folder after DIR").text
        else:
            raise Fault("unexpected-word", f"expected DIR, NOOP or DONE, found {option.text!r}", option.mark)
    return lexer.NodeCommand(
        kind=kind, name=name, description=description, directory=directory, noop=noop, done=done, **line.place
    )


def _check_name(name: Word) -> None:
    if name.text.upper() in RESERVED_NAMES:
        raise Fault("reserved-name", f"expected a node name, found the reserved word {name.text!r}", name.mark)
    if "+" in name.text:
        raise Fault(
            "illegal-name",
            f"expected a node name without '+', found {name.text!r}",
            name.mark,
            hint="'+' separates a splice from its nodes",
        )


def _inline_end(word: Word) -> str | None:
    if word.text.startswith("{"):
        return "}"
    if word.text.startswith("@="):
        if len(word.text) == 2:
            raise Fault("bad-inline", "expected a closing word after '@=', found the end of the line", word.mark)
        return "@" + word.text[2:]
    return None


def _inline(line: ParsedLine, opening: Word, *, end: str) -> tuple[lexer.Inline, Cursor]:
    lines: list[Line] = []
    while (inner := line.reader.raw()) is not None:
        if inner.text == end or inner.text.startswith(end + " "):
            inline = lexer.Inline(tuple(lines), line.file, opening.mark)
            cursor = Cursor(inner)
            cursor.word()
            return inline, cursor
        lines.append(inner)
    raise Fault(
        "bad-inline",
        f"expected a line {end!r} that ends the inline submit description, found the end of the file",
        opening.mark,
    )


def parse_description(line: ParsedLine) -> lexer.Command:
    """SUBMIT-DESCRIPTION."""
    name = required(line.cursor.word(), line.cursor, "the name of a submit description")
    opening = required(line.cursor.word(), line.cursor, "'{' or '@=WORD'")
    end = _inline_end(opening)
    if end is None:
        raise Fault("bad-inline", f"expected '{{' or '@=WORD', found {opening.text!r}", opening.mark)
    inline, _ = _inline(line, opening, end=end)
    return lexer.DescriptionCommand(name=name, description=inline, **line.place)


def parse_splice(line: ParsedLine) -> lexer.Command:
    """SPLICE."""
    cursor = line.cursor
    name = required(cursor.word(), cursor, "the name of a splice")
    path = required(cursor.unquoted(), cursor, "a DAG file")
    directory = ""
    if (option := cursor.word()) is not None:
        if not same_keyword(option.text, "DIR"):
            raise Fault("unexpected-word", f"expected DIR or the end of the line, found {option.text!r}", option.mark)
        directory = required(cursor.unquoted(), cursor, "a folder after DIR").text
        refuse_rest(line)
    return lexer.SpliceCommand(name=name, path=path, directory=directory, **line.place)


def parse_include(line: ParsedLine) -> lexer.Command:
    """INCLUDE."""
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    refuse_rest(line)
    return lexer.IncludeCommand(path=path, **line.place)


_PIN_MAX = 100_000
_SCRIPTS: dict[str, lexer.ScriptKind] = {"PRE": "pre", "POST": "post", "HOLD": "hold"}


def parse_commands(text: str, report: Report, *, file: str) -> tuple[lexer.Command, ...]:
    """All commands of a DAG file in order; faults go to the report."""
    reader = LineReader(text)
    found: list[lexer.Command] = []
    while (line := reader.logical()) is not None:
        try:
            found.append(_command(line, reader, file=file))
        except Fault as fault:
            message = without_content(fault.message, report, file=file)
            hint = fault.hint if message == fault.message else ""
            report.error(fault.code, message, fault.mark, hint=hint, file=file)
    return tuple(found)


def _command(line: Line, reader: LineReader, *, file: str) -> lexer.Command:
    cursor = Cursor(line)
    word = required(cursor.word(), cursor, "a command")
    keyword = word.text.upper().replace("-", "_")
    parse = _PARSERS.get(keyword)
    if parse is None:
        raise Fault(
            "unknown-command",
            f"expected a DAGMan command, found {word.text!r}",
            word.mark,
            hint=did_you_mean(keyword, _PARSERS),
        )
    return parse(
        ParsedLine(cursor=cursor, reader=reader, keyword=_SPELLING.get(keyword, keyword), file=file, mark=word.mark)
    )


def _node_word(line: ParsedLine) -> Word:
    return required(line.cursor.word(), line.cursor, "the name of a node")


def _parse_parent(line: ParsedLine) -> lexer.Command:
    return _dependencies(line, weak=False)


def _parse_weak(line: ParsedLine) -> lexer.Command:
    word = line.cursor.word()
    if word is None or not same_keyword(word.text, "PARENT"):
        raise Fault("missing-word", "expected PARENT after WEAK", word.mark if word else line.mark)
    return _dependencies(line, weak=True)


def _dependencies(line: ParsedLine, *, weak: bool) -> lexer.Command:
    parents: list[Word] = []
    children: list[Word] = []
    side = parents
    while (word := line.cursor.word()) is not None:
        if not same_keyword(word.text, "CHILD"):
            side.append(word)
        elif not parents:
            break
        elif not line.cursor.peek():
            raise Fault("missing-word", "expected the name of a child after CHILD", word.mark)
        else:
            side = children
    if not parents:
        raise Fault("missing-word", "expected the name of a parent after PARENT", line.mark)
    if side is parents:
        raise Fault("missing-word", "expected CHILD and the names of children, found the end of the line", line.mark)
    return lexer.DependencyCommand(weak=weak, parents=tuple(parents), children=tuple(children), **line.place)


def _parse_script(line: ParsedLine) -> lexer.Command:
    cursor = line.cursor
    status: int | None = None
    seconds: int | None = None
    debug = ""
    while True:
        word = required(cursor.word(), cursor, "PRE, POST or HOLD")
        kind = _SCRIPTS.get(word.text.upper())
        if kind is not None:
            break
        if same_keyword(word.text, "DEFER"):
            status = number(cursor, "the exit code after DEFER")
            seconds = number(cursor, "the seconds after DEFER", least=0)
        elif same_keyword(word.text, "DEBUG"):
            debug = required(cursor.word(), cursor, "the file after DEBUG").text
            stream = required(cursor.word(), cursor, "STDOUT, STDERR or ALL after the DEBUG file")
            if stream.text.upper() not in ("STDOUT", "STDERR", "ALL"):
                raise Fault("bad-option", f"expected STDOUT, STDERR or ALL, found {stream.text!r}", stream.mark)
        else:
            raise Fault("bad-option", f"expected PRE, POST, HOLD, DEFER or DEBUG, found {word.text!r}", word.mark)
    node = _node_word(line)
    script = required(cursor.rest(), cursor, "a script")
    return lexer.ScriptCommand(
        kind=kind, node=node, script=script, defer_status=status, defer_seconds=seconds, debug_file=debug, **line.place
    )


def _parse_retry(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    times = number(line.cursor, "the number of retries", least=0)
    unless: int | None = None
    if (option := line.cursor.word()) is not None:
        if not same_keyword(option.text, "UNLESS_EXIT"):
            raise Fault(
                "unexpected-word", f"expected UNLESS-EXIT or the end of the line, found {option.text!r}", option.mark
            )
        unless = number(line.cursor, "the exit code after UNLESS-EXIT")
        refuse_rest(line)
    return lexer.RetryCommand(node=node, times=times, unless_exit=unless, **line.place)


def _parse_abort(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    status = number(line.cursor, "the exit code to abort on")
    result: int | None = None
    if (option := line.cursor.word()) is not None:
        if not same_keyword(option.text, "RETURN"):
            raise Fault(
                "unexpected-word", f"expected RETURN or the end of the line, found {option.text!r}", option.mark
            )
        result = number(line.cursor, "the value after RETURN", least=0, most=255)
        refuse_rest(line)
    return lexer.AbortCommand(node=node, status=status, result=result, **line.place)


def _parse_vars(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    placement = line.cursor.peek()
    append = same_keyword(placement, "APPEND")
    if append or same_keyword(placement, "PREPEND"):
        line.cursor.word()
    pairs = []
    while (pair := line.cursor.pair()) is not None:
        if pair.name in ("+", "My."):
            raise Fault("bad-pair", f"expected a letter or digit in the variable name {pair.name!r}", pair.mark)
        if pair.name.lower().startswith("queue"):
            raise Fault("bad-pair", f"a variable name may not begin with 'queue': {pair.name!r}", pair.mark)
        pairs.append(pair)
    if not pairs:
        raise Fault("missing-word", "expected NAME=VALUE after the node of VARS", line.cursor.mark)
    return lexer.VarsCommand(node=node, append=append, pairs=tuple(pairs), **line.place)


def _parse_priority(line: ParsedLine) -> lexer.Command:
    return _number_command(line, number_of=lambda: number(line.cursor, "a priority"))


def _parse_pre_skip(line: ParsedLine) -> lexer.Command:
    return _number_command(line, number_of=lambda: number(line.cursor, "an exit code", least=0, most=255))


def _number_command(line: ParsedLine, *, number_of: Callable[[], int]) -> lexer.Command:
    node = _node_word(line)
    value = number_of()
    refuse_rest(line)
    return lexer.NumberCommand(node=node, number=value, **line.place)


def _parse_tolerance(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    amount = required(line.cursor.word(), line.cursor, "a number of failures").text
    if line.cursor.peek() == "%":
        line.cursor.word()
        amount += "%"
    if not amount.removesuffix("%").isascii() or not amount.removesuffix("%").isdigit():
        raise Fault("bad-number", f"expected a number of failures such as 3 or 10%, found {amount!r}", line.mark)
    option = line.cursor.peek()
    if same_keyword(option, "FAIL_FAST") or same_keyword(option, "WAIT"):
        line.cursor.word()
        amount += f" {option.upper()}"
    refuse_rest(line)
    return lexer.ToleranceCommand(node=node, text=amount, **line.place)


def _parse_done(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    refuse_rest(line)
    return lexer.NodeNameCommand(node=node, **line.place)


def _parse_save_point(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    if same_keyword(node.text, "ALL_NODES"):
        raise Fault("reserved-name", "expected one node for SAVE_POINT_FILE, found ALL_NODES", node.mark)
    path = line.cursor.unquoted()
    refuse_rest(line)
    return lexer.NodeNameCommand(node=node, path=path.text if path else "", **line.place)


def _parse_category(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    category = required(line.cursor.word(), line.cursor, "the name of a category")
    refuse_rest(line)
    return lexer.CategoryCommand(node=node, category=category.text, **line.place)


def _parse_max_jobs(line: ParsedLine) -> lexer.Command:
    category = required(line.cursor.word(), line.cursor, "the name of a category")
    limit = number(line.cursor, "a limit", least=0)
    refuse_rest(line)
    return lexer.LimitCommand(category=category.text, limit=limit, **line.place)


def _parse_connect(line: ParsedLine) -> lexer.Command:
    parent = required(line.cursor.word(), line.cursor, "the name of a splice")
    child = required(line.cursor.word(), line.cursor, "the name of a second splice")
    refuse_rest(line)
    return lexer.ConnectCommand(parent=parent, child=child, **line.place)


def _parse_pin(line: ParsedLine) -> lexer.Command:
    node = _node_word(line)
    pin = number(line.cursor, "the number of a pin", least=1, most=_PIN_MAX)
    refuse_rest(line)
    return lexer.PinCommand(node=node, pin=pin, **line.place)


def _parse_file(line: ParsedLine) -> lexer.Command:
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    refuse_rest(line)
    return lexer.PlainCommand(text=path.text, **line.place)


def _parse_dot(line: ParsedLine) -> lexer.Command:
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    while (option := line.cursor.word()) is not None:
        if same_keyword(option.text, "INCLUDE"):
            required(line.cursor.word(), line.cursor, "the file after INCLUDE")
        elif not any(same_keyword(option.text, known) for known in _DOT_OPTIONS):
            raise Fault(
                "unexpected-word",
                f"expected one of {', '.join(_DOT_OPTIONS)} or INCLUDE, found {option.text!r}",
                option.mark,
            )
    return lexer.PlainCommand(text=path.text, **line.place)


def _parse_node_status(line: ParsedLine) -> lexer.Command:
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    while line.cursor.peek():
        if same_keyword(line.cursor.peek(), "ALWAYS_UPDATE"):
            line.cursor.word()
        else:
            number(line.cursor, "seconds between updates, or ALWAYS-UPDATE")
    return lexer.PlainCommand(text=path.text, **line.place)


def _parse_attribute(line: ParsedLine) -> lexer.Command:
    rest = required(line.cursor.rest(), line.cursor, "NAME = VALUE")
    return lexer.PlainCommand(text=rest.text, **line.place)


def _parse_env(line: ParsedLine) -> lexer.Command:
    action = required(line.cursor.word(), line.cursor, "SET or GET")
    if action.text.upper() not in ("SET", "GET"):
        raise Fault("bad-option", f"expected SET or GET, found {action.text!r}", action.mark)
    rest = required(line.cursor.rest(), line.cursor, "environment variables")
    return lexer.PlainCommand(text=f"{action.text.upper()} {rest.text}", **line.place)


def _parse_reject(line: ParsedLine) -> lexer.Command:
    refuse_rest(line)
    return lexer.PlainCommand(text="", **line.place)


_DOT_OPTIONS = ("UPDATE", "DONT-UPDATE", "OVERWRITE", "DONT-OVERWRITE")
_SPELLING = {"SUBMIT_DESCRIPTION": "SUBMIT-DESCRIPTION", "ABORT_DAG_ON": "ABORT-DAG-ON", "WEAK": "WEAK PARENT"}
_PARSERS: dict[str, Callable[[ParsedLine], lexer.Command]] = {
    "JOB": parse_node,
    "FINAL": parse_node,
    "PROVISIONER": parse_node,
    "SERVICE": parse_node,
    "SUBDAG": parse_subdag,
    "SPLICE": parse_splice,
    "INCLUDE": parse_include,
    "SUBMIT_DESCRIPTION": parse_description,
    "PARENT": _parse_parent,
    "WEAK": _parse_weak,
    "SCRIPT": _parse_script,
    "RETRY": _parse_retry,
    "ABORT_DAG_ON": _parse_abort,
    "VARS": _parse_vars,
    "PRIORITY": _parse_priority,
    "PRE_SKIP": _parse_pre_skip,
    "TOLERANCE": _parse_tolerance,
    "DONE": _parse_done,
    "CATEGORY": _parse_category,
    "MAXJOBS": _parse_max_jobs,
    "CONFIG": _parse_file,
    "DOT": _parse_dot,
    "NODE_STATUS_FILE": _parse_node_status,
    "JOBSTATE_LOG": _parse_file,
    "SAVE_POINT_FILE": _parse_save_point,
    "SET_JOB_ATTR": _parse_attribute,
    "ENV": _parse_env,
    "REJECT": _parse_reject,
    "CONNECT": _parse_connect,
    "PIN_IN": _parse_pin,
    "PIN_OUT": _parse_pin,
}

KEYWORDS = frozenset(_PARSERS)
