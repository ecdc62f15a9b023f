"""The option ``where=``: an SQL condition that narrows a load before anything is read. [P]

    timestamp >= TIMESTAMP '2024-05-01 00:00:00Z' and partition in (0, 3) and not topic like 'test%'

It keeps the rows that the same text keeps as a filter of Spark's. It supports the columns `offset`,
`partition`, `timestamp` and `topic`, compared with constants by ``= == <=> <> != < <= > >=``, ``between``,
``in``, for `topic` also ``like``; ``and``, ``or``, ``not`` and parentheses. Text that could mean something
else in another session is refused: times without a zone (unless `timeZone` gives them one), constants that
Spark would first convert to another type.

A `key` is compared by ``=`` and ``in`` alone, with text or bytes (``X'0aff'``), and outside of ``or`` and
``not``: objects are chosen by their filters of keys, which cannot say that a key is all that a segment has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import reduce
from operator import and_, or_
from typing import Final, NamedTuple, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from service.base.errors import ConfigError
from service.spark.selection import (
    END_OF_TIME,
    EVERYTHING,
    MIN_TIMESTAMP,
    NOTHING,
    Span,
    Window,
    of_offsets,
    of_times,
)

MAX_TEXT: Final = 64 << 10
MAX_CONSTANTS: Final = 1000
MAX_DEPTH: Final = 64
COLUMNS: Final = ("key", "offset", "partition", "timestamp", "topic")
_TYPED: Final = ("timestamp", "x")
"""Words that make a constant with the string that follows."""
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?![\w.]))|(?P<string>'[^']*'(?!'))|(?P<word>\w+|`\w+`)"
    r"|(?P<symbol><=>|<>|!=|==|<=|>=|[=<>(),!-]))",
    re.ASCII,
)
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d?):(\d\d?)(?:\.(\d{1,6}))?\s?(Z|UTC|[+-]\d\d:\d\d)?)?",
    re.ASCII,
)
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Node = Callable[[str, int], Window]
"""A condition: the window that it leaves of a partition, given its topic and its number."""
_Value = int | str | bytes


@dataclass(frozen=True, slots=True)
class Where:
    """A checked condition; tasks and plans get its text. With `keys` only records with one of them pass."""

    text: str
    time_zone: str | None = None
    keys: frozenset[bytes] | None = None

    def window(self) -> Node:
        """Parse the text again: the parsed condition cannot be pickled."""
        return _Parser(self.text, self.time_zone).parse()


def parse_where(text: str, time_zone: str | None = None) -> Where:
    """Check a condition. `ConfigError` says where the text is not understood, and how to write it otherwise.

    `time_zone` (as ``Europe/Berlin``) is that of times which name none.

    >>> parse_where("partition = 3 or offset < 10").window()("flights", 3) == EVERYTHING
    True
    """
    parser = _Parser(text, time_zone)
    parser.parse()
    return Where(text, time_zone, parser.keys)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """A recursive-descent parser with SQL's precedence: not, and, or."""

    def __init__(self, text: str, time_zone: str | None) -> None:
        self._text = text
        self._zone = None if time_zone is None else _region(time_zone)
        self._constants = 0
        self._depth = 0
        self._key_at: int | None = None
        self.keys: frozenset[bytes] | None = None
        if len(text) > MAX_TEXT:
            raise ConfigError(f"option where: longer than {MAX_TEXT} characters")
        self._tokens = self._cut(text)
        self._next = 0

    def parse(self) -> Node:
        found = self._any()
        if self._peek().kind != "end":
            self._fail("and or or is expected here")
        return found

    def _cut(self, text: str) -> list[_Token]:
        tokens, at = [], 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise ConfigError(f"option where: not understood: {_shown(text, at)}")
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        return [*tokens, _Token("end", "", len(text))]

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _accept(self, *words: str) -> bool:
        """Consume these words or symbols if they come next; return whether they did."""
        coming = [token.text.lower() for token in self._tokens[self._next : self._next + len(words)]]
        if coming != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, symbol: str) -> None:
        if not self._accept(symbol):
            self._fail(f"{symbol} is expected here")

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        raise ConfigError(
            f"option where: {reason}: {_shown(self._text, self._peek().at if at is None else at)}"
        )

    def _any(self) -> Node:
        begun = self._peek().at
        parts = [self._all()]
        while self._accept("or"):
            parts.append(self._all())
        if len(parts) > 1:
            self._refuse_keys(begun)
        return parts[0] if len(parts) == 1 else _merged(parts, or_)

    def _all(self) -> Node:
        parts = [self._negation()]
        while self._accept("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else _merged(parts, and_)

    def _negation(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} levels deep")
        try:
            begun = self._peek().at
            if self._accept("not") or self._accept("!"):
                found = _negated(self._negation())
                self._refuse_keys(begun)
                return found
            if self._accept("("):
                found = self._any()
                self._expect(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _refuse_keys(self, begun: int) -> None:
        """Fail if a key was compared from character `begun` on."""
        if self._key_at is not None and self._key_at >= begun:
            self._fail("key is compared outside of or and not, as in key in ('a', 'b') and …", self._key_at)

    def _comparison(self) -> Node:
        if (column := self._column()) is None:
            constant = self._constant()
            operator = self._operator()
            if (column := self._column()) is None:
                self._fail(f"one of the columns {', '.join(COLUMNS)} is expected here")
            value = self._fitted(column, constant)
            if column == "key":
                return self._with_keys(operator, [value], constant.at)
            return _compared(column, _FLIPPED.get(operator, operator), value)
        if column == "key":
            return self._keys()
        negated = self._accept("not")
        found = self._special(column)
        if found is None and negated:
            self._fail("between, in or like is expected here")
        if found is None:
            found = _compared(column, self._operator(), self._value(column))
        return _negated(found) if negated else found

    def _keys(self) -> Node:
        """Parse what follows the column `key`."""
        at = self._tokens[self._next - 1].at
        if self._accept("not"):
            self._fail("key is compared with = and in", at)
        if self._accept("in", "("):
            return self._with_keys("=", self._values("key"), at)
        return self._with_keys(self._operator(), [self._value("key")], at)

    def _with_keys(self, operator: str, values: list[_Value], at: int) -> Node:
        if operator != "=":
            self._fail("key is compared with = and in", at)
        keys = frozenset(value for value in values if isinstance(value, bytes))
        self.keys = keys if self.keys is None else self.keys & keys
        self._key_at = at
        return _whole(lambda _topic, _partition: bool(self.keys))

    def _values(self, column: str) -> list[_Value]:
        """Parse the rest of a list in parentheses."""
        values = [self._value(column)]
        while self._accept(","):
            values.append(self._value(column))
        self._expect(")")
        return values

    def _special(self, column: str) -> Node | None:
        if self._accept("between"):
            low = self._value(column)
            if not self._accept("and"):
                self._fail("and is expected here")
            return _merged([_compared(column, ">=", low), _compared(column, "<=", self._value(column))], and_)
        if self._accept("in", "("):
            return _one_of(column, self._values(column))
        if column == "topic" and self._accept("like"):
            return _like(self._pattern())
        return None

    def _column(self) -> str | None:
        token = self._peek()
        name = token.text.strip("`").lower()
        if token.kind != "word" or name not in COLUMNS or self._is_typed():
            return None
        self._advance()
        return name

    def _is_typed(self) -> bool:
        """Return whether ``TIMESTAMP '…'`` or ``X'…'`` comes next."""
        here, following = self._tokens[self._next], self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        return here.text.lower() in _TYPED and following.kind == "string"

    def _operator(self) -> str:
        token = self._peek()
        if token.kind != "symbol" or token.text in "(),-!":
            self._fail("a comparison is expected here")
        self._advance()
        return {"==": "=", "<=>": "=", "!=": "<>"}.get(token.text, token.text)

    def _value(self, column: str) -> _Value:
        return self._fitted(column, self._constant())

    def _constant(self) -> _Token:
        """Parse a number with its sign, a string without its quotes, a time, or bytes."""
        self._constants += 1
        if self._constants > MAX_CONSTANTS:
            self._fail(f"more than {MAX_CONSTANTS} constants")
        at = self._peek().at
        kind = "string"
        if self._is_typed():
            kind = "time" if self._advance().text.lower() == "timestamp" else "bytes"
        sign = "-" if self._accept("-") else ""
        token = self._peek()
        if token.kind == "number":
            return _Token("number", sign + self._advance().text, at)
        if token.kind != "string" or sign:
            self._fail(f"a constant, or one of the columns {', '.join(COLUMNS)}, is expected here")
        if "\\" in token.text:
            self._fail("there is no backslash in a topic's name or a time; a key with one is written X'5c'")
        if "${" in token.text:
            self._fail("a session replaces ${…} by a setting of its own; a key with it is written X'247b'")
        return _Token(kind, self._advance().text[1:-1], at)

    def _fitted(self, column: str, constant: _Token) -> _Value:
        """Return a number for offsets and partitions, microseconds since 1970 for times, text for topics,
        bytes for keys."""
        if column == "key":
            return self._key(constant)
        if column in ("offset", "partition"):
            if constant.kind != "number" or len(constant.text) > 40:
                self._fail(f"{column} is compared with whole numbers", constant.at)
            return int(constant.text)
        if column == "topic":
            if constant.kind != "string":
                self._fail("topic is compared with strings", constant.at)
            return constant.text
        if constant.kind in ("number", "bytes"):
            self._fail("timestamp is compared with TIMESTAMP '…'", constant.at)
        return self._microseconds(constant.text, constant.at)

    def _key(self, constant: _Token) -> bytes:
        if constant.kind == "string":
            try:
                return constant.text.encode()
            except UnicodeEncodeError:
                self._fail(
                    "half a character is no text; a key is written as bytes, as in X'0aff'", constant.at
                )
        if constant.kind != "bytes" or not re.fullmatch("[0-9a-fA-F]*", constant.text, re.ASCII):
            self._fail("key is compared with strings, or with bytes as in X'0aff'", constant.at)
        return bytes.fromhex("0" * (len(constant.text) % 2) + constant.text)

    def _pattern(self) -> str:
        token = self._peek()
        if token.kind != "string" or re.search(r"\\(?![%_])", token.text):
            self._fail(r"like takes a string in which a backslash comes before % or _ only")
        self._constants += 1
        return self._advance().text[1:-1]

    def _microseconds(self, text: str, at: int) -> int:
        match = _TIME.fullmatch(text)
        if match is None:
            self._fail("that is no time as in TIMESTAMP '2024-05-01 00:00:00Z'", at)
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        if zone is None and self._zone is None:
            self._fail(
                "a time needs its zone, as in TIMESTAMP '2024-05-01 00:00:00Z', or option timeZone, which "
                "should say what spark.sql.session.timeZone does",
                at,
            )
        try:
            time = datetime(
                int(year),
                int(month),
                int(day),
                int(hour or 0),
                int(minute or 0),
                int(second or 0),
                int((fraction or "").ljust(6, "0")),
                tzinfo=_offset(zone) if zone else self._zone,
            )
        except ValueError as e:
            self._fail(f"that is no time ({e})", at)
        return (time - _EPOCH) // timedelta(microseconds=1)


def _region(name: str) -> tzinfo:
    """Return the zone. At a clock change times are read as Spark reads them: by the offset before it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        raise ConfigError(f"option timeZone: there is no zone {name!r} as in Europe/Berlin or UTC") from e


def _offset(text: str) -> timezone:
    if text in ("Z", "UTC"):
        return UTC
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[4:6]))
    if int(text[4:6]) > 59 or offset > timedelta(hours=18):
        raise ValueError(f"there is no zone {text}")
    return timezone(-offset if text[0] == "-" else offset)


def _shown(text: str, at: int) -> str:
    rest = text[at : at + 40]
    return f"at character {at + 1}, {rest!r}" if rest else "at its end"


def _merged(parts: list[Node], join: Callable[[Window, Window], Window]) -> Node:
    return lambda topic, partition: reduce(join, [part(topic, partition) for part in parts])


def _negated(part: Node) -> Node:
    return lambda topic, partition: ~part(topic, partition)


def _whole(holds: Callable[[str, int], bool]) -> Node:
    return lambda topic, partition: EVERYTHING if holds(topic, partition) else NOTHING


def _compared(column: str, operator: str, value: _Value) -> Node:
    if operator == "<>":
        return _negated(_compared(column, "=", value))
    assert not isinstance(value, bytes)
    if isinstance(value, str):
        return _whole(lambda topic, _: _TESTS[operator](topic, value))
    if column == "partition":
        return _whole(lambda _, partition: _TESTS[operator](partition, value))
    return _within(column, [_span(operator, value)])


def _one_of(column: str, values: list[_Value]) -> Node:
    if column == "topic":
        return _whole(lambda topic, _: topic in values)
    if column == "partition":
        return _whole(lambda _, partition: partition in values)
    return _within(column, [_span("=", value) for value in values if isinstance(value, int)])


def _within(column: str, spans: list[Span]) -> Node:
    if column == "offset":
        window = of_offsets(spans)
    else:
        window = of_times((_milliseconds(begin), _milliseconds(end)) for begin, end in spans)
    return lambda _topic, _partition: window


_TESTS: Final[dict[str, Callable[[str | int, str | int], bool]]] = {
    "=": lambda found, value: found == value,
    "<": lambda found, value: found < value,  # type: ignore[operator]
    "<=": lambda found, value: found <= value,  # type: ignore[operator]
    ">": lambda found, value: found > value,  # type: ignore[operator]
    ">=": lambda found, value: found >= value,  # type: ignore[operator]
}


def _span(operator: str, value: int) -> Span:
    """Return the half-open range of whole numbers that pass."""
    return {
        "=": (value, value + 1),
        ">": (value + 1, END_OF_TIME),
        ">=": (value, END_OF_TIME),
        "<": (MIN_TIMESTAMP, value),
        "<=": (MIN_TIMESTAMP, value + 1),
    }[operator]


def _milliseconds(microseconds: int) -> int:
    """Return the first whole millisecond at or after a time; the ends of time stay what they are."""
    if microseconds in (MIN_TIMESTAMP, END_OF_TIME):
        return microseconds
    return -(-microseconds // 1000)


def _like(pattern: str) -> Node:
    parts = re.split(r"(\\[%_]|[%_])", pattern)
    words = {"%": ".*", "_": "."}
    compiled = re.compile(
        "".join(words.get(part, re.escape(part.removeprefix("\\"))) for part in parts), re.S
    )
    return _whole(lambda topic, _: compiled.fullmatch(topic) is not None)
