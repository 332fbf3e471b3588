"""DAG text to commands. A line that cannot be understood becomes a problem; the lines after it are still read."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.language.dagman import commands as ast
from pilotage.language.dagman.lexer import Cursor, Fault, Line, LineReader, Word
from pilotage.language.dagman.parser_nodes import (
    ParsedLine,
    number,
    parse_description,
    parse_include,
    parse_node,
    parse_splice,
    parse_subdag,
    refuse_rest,
    required,
    same_keyword,
)
from pilotage.language.dagman.paths import told
from pilotage.language.text.tree import Report
from pilotage.model.errors import did_you_mean

_PIN_MAX = 100_000
_SCRIPTS: dict[str, ast.ScriptKind] = {"PRE": "pre", "POST": "post", "HOLD": "hold"}


def parse_commands(text: str, report: Report, *, file: str) -> tuple[ast.Command, ...]:
    """Every command of a DAG file in its order; faults go to the report."""
    reader = LineReader(text)
    found: list[ast.Command] = []
    while (line := reader.logical()) is not None:
        try:
            found.append(_command(line, reader, file=file))
        except Fault as fault:
            message = told(fault.message, report, file=file)
            hint = fault.hint if message == fault.message else ""
            report.error(fault.code, message, fault.mark, hint=hint, file=file)
    return tuple(found)


def _command(line: Line, reader: LineReader, *, file: str) -> ast.Command:
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


def _parse_parent(line: ParsedLine) -> ast.Command:
    return _dependencies(line, weak=False)


def _parse_weak(line: ParsedLine) -> ast.Command:
    word = line.cursor.word()
    if word is None or not same_keyword(word.text, "PARENT"):
        raise Fault("missing-word", "expected PARENT after WEAK", word.mark if word else line.mark)
    return _dependencies(line, weak=True)


def _dependencies(line: ParsedLine, *, weak: bool) -> ast.Command:
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
    return ast.DependencyCommand(weak=weak, parents=tuple(parents), children=tuple(children), **line.place)


def _parse_script(line: ParsedLine) -> ast.Command:
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
    return ast.ScriptCommand(
        kind=kind, node=node, script=script, defer_status=status, defer_seconds=seconds, debug_file=debug, **line.place
    )


def _parse_retry(line: ParsedLine) -> ast.Command:
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
    return ast.RetryCommand(node=node, times=times, unless_exit=unless, **line.place)


def _parse_abort(line: ParsedLine) -> ast.Command:
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
    return ast.AbortCommand(node=node, status=status, result=result, **line.place)


def _parse_vars(line: ParsedLine) -> ast.Command:
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
    return ast.VarsCommand(node=node, append=append, pairs=tuple(pairs), **line.place)


def _parse_priority(line: ParsedLine) -> ast.Command:
    return _number_command(line, number_of=lambda: number(line.cursor, "a priority"))


def _parse_pre_skip(line: ParsedLine) -> ast.Command:
    return _number_command(line, number_of=lambda: number(line.cursor, "an exit code", least=0, most=255))


def _number_command(line: ParsedLine, *, number_of: Callable[[], int]) -> ast.Command:
    node = _node_word(line)
    value = number_of()
    refuse_rest(line)
    return ast.NumberCommand(node=node, number=value, **line.place)


def _parse_tolerance(line: ParsedLine) -> ast.Command:
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
    return ast.ToleranceCommand(node=node, text=amount, **line.place)


def _parse_done(line: ParsedLine) -> ast.Command:
    node = _node_word(line)
    refuse_rest(line)
    return ast.NodeNameCommand(node=node, **line.place)


def _parse_save_point(line: ParsedLine) -> ast.Command:
    node = _node_word(line)
    if same_keyword(node.text, "ALL_NODES"):
        raise Fault("reserved-name", "expected one node for SAVE_POINT_FILE, found ALL_NODES", node.mark)
    path = line.cursor.unquoted()
    refuse_rest(line)
    return ast.NodeNameCommand(node=node, path=path.text if path else "", **line.place)


def _parse_category(line: ParsedLine) -> ast.Command:
    node = _node_word(line)
    category = required(line.cursor.word(), line.cursor, "the name of a category")
    refuse_rest(line)
    return ast.CategoryCommand(node=node, category=category.text, **line.place)


def _parse_max_jobs(line: ParsedLine) -> ast.Command:
    category = required(line.cursor.word(), line.cursor, "the name of a category")
    limit = number(line.cursor, "a limit", least=0)
    refuse_rest(line)
    return ast.LimitCommand(category=category.text, limit=limit, **line.place)


def _parse_connect(line: ParsedLine) -> ast.Command:
    parent = required(line.cursor.word(), line.cursor, "the name of a splice")
    child = required(line.cursor.word(), line.cursor, "the name of a second splice")
    refuse_rest(line)
    return ast.ConnectCommand(parent=parent, child=child, **line.place)


def _parse_pin(line: ParsedLine) -> ast.Command:
    node = _node_word(line)
    pin = number(line.cursor, "the number of a pin", least=1, most=_PIN_MAX)
    refuse_rest(line)
    return ast.PinCommand(node=node, pin=pin, **line.place)


def _parse_file(line: ParsedLine) -> ast.Command:
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    refuse_rest(line)
    return ast.PlainCommand(text=path.text, **line.place)


def _parse_dot(line: ParsedLine) -> ast.Command:
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
    return ast.PlainCommand(text=path.text, **line.place)


def _parse_node_status(line: ParsedLine) -> ast.Command:
    path = required(line.cursor.unquoted(), line.cursor, "a file")
    while line.cursor.peek():
        if same_keyword(line.cursor.peek(), "ALWAYS_UPDATE"):
            line.cursor.word()
        else:
            number(line.cursor, "seconds between updates, or ALWAYS-UPDATE")
    return ast.PlainCommand(text=path.text, **line.place)


def _parse_attribute(line: ParsedLine) -> ast.Command:
    rest = required(line.cursor.rest(), line.cursor, "NAME = VALUE")
    return ast.PlainCommand(text=rest.text, **line.place)


def _parse_env(line: ParsedLine) -> ast.Command:
    action = required(line.cursor.word(), line.cursor, "SET or GET")
    if action.text.upper() not in ("SET", "GET"):
        raise Fault("bad-option", f"expected SET or GET, found {action.text!r}", action.mark)
    rest = required(line.cursor.rest(), line.cursor, "environment variables")
    return ast.PlainCommand(text=f"{action.text.upper()} {rest.text}", **line.place)


def _parse_reject(line: ParsedLine) -> ast.Command:
    refuse_rest(line)
    return ast.PlainCommand(text="", **line.place)


_DOT_OPTIONS = ("UPDATE", "DONT-UPDATE", "OVERWRITE", "DONT-OVERWRITE")
_SPELLING = {"SUBMIT_DESCRIPTION": "SUBMIT-DESCRIPTION", "ABORT_DAG_ON": "ABORT-DAG-ON", "WEAK": "WEAK PARENT"}
_PARSERS: dict[str, Callable[[ParsedLine], ast.Command]] = {
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
