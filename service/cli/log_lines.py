"""How a node's log lines look: one line each, whatever peers and buckets call things."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType
from typing import Final

from service.base.printable import escaped, printable

MOST_CHARACTERS: Final = 4096
"""Of one message; what names may hold is bounded where they are written."""

MOST_MEMBERS: Final = 8
"""Exceptions of one group that are told"""

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class OneLineFormatter(logging.Formatter):
    """Escapes what does not print, so that a line begins only where we begin one.

    A traceback follows its message as ever, with the words of each exception in one line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, MOST_CHARACTERS)
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:
        error = ei[1]
        return "" if error is None else "".join(_lines(error)).rstrip("\n")


def _lines(error: BaseException) -> list[str]:
    """`error` and what led to it, the first cause first."""
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


def log_to_stderr(level: str) -> None:
    """Have this process log to stderr from `level` ("debug" to "error") on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
