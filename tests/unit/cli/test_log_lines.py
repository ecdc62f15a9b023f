"""One line of the log per message, and tracebacks that peers cannot forge."""

from __future__ import annotations

import io
import json
import logging
import sys

from service.cli.log_lines import MOST_CHARACTERS, JsonFormatter, OneLineFormatter

FORGED = "2026-01-01 00:00:00,000 CRITICAL root: the disk is on fire"
NASTY = f"t\n{FORGED}\x1b[2J"


def logged(message: str, *args: object, error: BaseException | None = None) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLineFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("lines")
    logger.addHandler(handler)
    try:
        logger.error(message, *args, exc_info=error)
    finally:
        logger.removeHandler(handler)
    return out.getvalue()


def test_a_name_with_a_line_feed_stays_in_its_line() -> None:
    assert logged("topic %s", NASTY) == f"ERROR lines: topic t\\n{FORGED}\\x1b[2J\n"


def test_a_long_message_is_cut() -> None:
    assert len(logged("key %s", "k" * 1_000_000)) < MOST_CHARACTERS + 100


def test_the_words_of_an_exception_stay_in_one_line_and_its_frames_are_told() -> None:
    try:
        try:
            raise KeyError(NASTY)
        except KeyError as e:
            raise ValueError(NASTY) from e
    except ValueError as e:
        text = logged("it failed", error=e)
    assert FORGED not in text.splitlines()
    assert "\x1b" not in text
    assert text.count("test_log_lines.py") == 2
    assert text.index("KeyError: ") < text.index("which was the cause of:") < text.index("ValueError: ")


def test_exceptions_that_lead_to_each_other_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    assert logged("it failed", error=one).endswith("ValueError: one\n")


def test_a_group_tells_its_exceptions_with_their_frames() -> None:
    try:
        raise KeyError(NASTY)
    except KeyError as e:
        inner = ExceptionGroup("inner", [e])
    text = logged("it failed", error=ExceptionGroup("two tasks", [inner, ValueError("second")]))
    assert text.count("test_log_lines.py") == 1
    assert FORGED not in text.splitlines()
    lines = text.splitlines()
    assert lines.index("of which one is:") < next(n for n, one in enumerate(lines) if "KeyError: " in one)
    assert lines[-1] == "ValueError: second"


def test_a_large_exception_group_is_logged_in_part() -> None:
    text = logged("it failed", error=ExceptionGroup("many", [ValueError("one")] * 1000))
    assert text.count("ValueError: one") == 8


def test_times_are_in_utc_whatever_the_zone_is() -> None:
    record = logging.LogRecord("lines", logging.INFO, __file__, 1, "hello", (), None)
    record.created, record.msecs = 1_767_225_600.007, 7.0
    text = OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format(record)
    assert text == "2026-01-01T00:00:00.007Z INFO lines: hello"


def test_a_line_of_json_is_one_object_with_the_documented_keys() -> None:
    record = logging.LogRecord("lines", logging.INFO, __file__, 1, "topic %s", (NASTY,), None)
    record.created, record.msecs = 1_767_225_600.0, 0.0
    record.audit = {"event": "topic-created"}
    line = JsonFormatter(3).format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.000Z",
        "level": "INFO",
        "logger": "lines",
        "message": f"topic t\\n{FORGED}\\x1b[2J",
        "node": 3,
        "audit": {"event": "topic-created"},
    }


def test_a_traceback_is_in_its_line_of_json() -> None:
    try:
        raise KeyError(NASTY)
    except KeyError:
        record = logging.LogRecord("lines", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert found["exception"].startswith("  File ")
    assert "node" not in found
