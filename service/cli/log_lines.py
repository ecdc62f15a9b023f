"""Formats of a process's log, text and JSON: one line each, times in UTC, foreign text escaped."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Final

from service.base.printable import escaped, printable

MOST_CHARACTERS: Final = 4096
"""Limit of one message; names in it are limited where they are formatted."""

MOST_MEMBERS: Final = 8
"""Exceptions of one group that are logged"""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OneLineFormatter(logging.Formatter):
    """Formatter that escapes unprintable characters, so that foreign text cannot begin a line.

    A traceback follows its message as usual, with the text of each exception in one line.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, MOST_CHARACTERS)
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:
        error = ei[1]
        return "" if error is None else "".join(_lines(error)).rstrip("\n")


class JsonFormatter(OneLineFormatter):
    """Formatter of one JSON object a line.

    Its keys are `time`, `level`, `logger` and `message`; `node`, the id of a node; `exception`, a traceback
    with its line feeds; and `audit`, an object, in lines of the audit log that tell a change.
    """

    def __init__(self, node_id: int | None = None) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage(), MOST_CHARACTERS),
        }
        if self._node_id is not None:
            line["node"] = self._node_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if (audit := getattr(record, "audit", None)) is not None:
            line["audit"] = audit
        return json.dumps(line)


def _lines(error: BaseException) -> list[str]:
    """Return the lines of `error` and its causes, the first cause first."""
    chain: list[tuple[BaseException, str]] = [(error, "")]
    while (cause := _cause(chain[-1][0])) and all(cause[0] is not one for one, _ in chain):
        chain.append(cause)
    lines = []
    for one, then in reversed(chain):
        lines += traceback.format_tb(one.__traceback__)
        lines.append(f"{type(one).__name__}: {printable(one, MOST_CHARACTERS)}\n")
        lines += [f"{escaped(note)}\n" for note in getattr(one, "__notes__", ())]
        if isinstance(one, BaseExceptionGroup):
            for member in one.exceptions[:MOST_MEMBERS]:
                lines += ["of which one is:\n", *_lines(member)]
        if then:
            lines.append(then)
    return lines


def _cause(error: BaseException) -> tuple[BaseException, str] | None:
    if error.__cause__ is not None:
        return error.__cause__, "which was the cause of:\n"
    if error.__context__ is not None and not error.__suppress_context__:
        return error.__context__, "and while that was handled:\n"
    return None


def log_to_stderr(level: str, form: str = "text", node_id: int | None = None) -> None:
    """Log from this process to stderr, from `level` ("debug" to "error") on, as "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(node_id)
        if form == "json"
        else OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
