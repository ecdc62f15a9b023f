"""Lines of text that stand for records: what `firn produce` reads and `firn consume` writes. [P]

`text` is the value alone, with the key in front of it where a separator is given. `json` is an object a line
with all that a record has; bytes that are not UTF-8 are ``{"base64": "…"}``. `hex` is `text` in hexadecimal
digits. What `firn consume` has written as `json`, `firn produce` reads as the same records.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError

NULL: Final = "null"
_WRITTEN: Final = ("partition", "timestamp", "key", "value", "headers")
_TOLD: Final = ("topic", "offset", "tier")
"""Fields that `firn consume` tells and a producer cannot choose."""
Headers = Sequence[tuple[str, bytes | None]]


class LineError(ConfigError):
    """A line that is no record; the message says what is wrong with it."""


class LineRecord(NamedTuple):
    """A record to send. `timestamp_ms` 0 is now, `partition` -1 any."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0
    partition: int = -1


class ReadRecord(NamedTuple):
    """A record that was read. `headers` is None where they cannot be shown, `tier` where nobody asked."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    tier: str | None = None


def line_reader(kind: str, separator: bytes | None, null: bytes | None) -> Callable[[bytes], LineRecord]:
    """Return a function from a line, without its end, to a record; it raises `LineError`.

    `null` is the text of a value that is none, a tombstone; of `hex` it is `NULL` by default.
    """
    if kind == "json":
        return _of_json
    if kind == "hex" and null is None:
        null = NULL.encode()
    decode = _unhex if kind == "hex" else bytes

    def field(text: bytes) -> bytes | None:
        return None if text == null else decode(text)

    def read(line: bytes) -> LineRecord:
        if separator is None:
            return LineRecord(None, field(line))
        key, found, value = line.partition(separator)
        if not found:
            raise LineError(f"there is no separator {separator.decode('utf-8', 'replace')!r} behind the key")
        return LineRecord(field(key), field(value))

    return read


def _unhex(text: bytes) -> bytes:
    try:
        return binascii.unhexlify(text)
    except ValueError as e:
        raise LineError(f"it is not in hexadecimal digits: {e}") from e


def _of_json(line: bytes) -> LineRecord:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise LineError(f"it is no JSON: {e}") from e
    if not isinstance(found, dict):
        raise LineError('it is no JSON object, as {"key": "a", "value": "b"}')
    if strange := sorted({*found} - {*_WRITTEN, *_TOLD}):
        raise LineError(f"there is no field {strange[0]}; a record has {', '.join(_WRITTEN)}")
    headers = found.get("headers") or []
    is_pairs = isinstance(headers, list) and all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in headers
    )
    if not is_pairs:
        raise LineError('headers are a list of pairs, as [["name", "value"]]')
    return LineRecord(
        _bytes_of("key", found.get("key")),
        _bytes_of("value", found.get("value")),
        [(_header_name(name), _bytes_of(f"header {name}", value)) for name, value in headers],
        _timestamp_of(found),
        _number_of("partition", found, -1, 2**31),
    )


def _bytes_of(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and [*value] == ["base64"]:
            return base64.b64decode(value["base64"], validate=True)
    except (ValueError, TypeError) as e:
        raise LineError(f"{name}: {e}") from e
    raise LineError(f'{name} is a string, null or {{"base64": "…"}}')


def _header_name(name: str) -> str:
    if "\0" in name:
        raise LineError("librdkafka cannot send a header with a zero byte in its name")
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise LineError(f"header name: {e}") from e
    return name


def _timestamp_of(found: dict[str, Any]) -> int:
    if found.get("timestamp") == 0:
        raise LineError(
            "librdkafka cannot send timestamp 0, which is its word for now: leave it out for that"
        )
    return _number_of("timestamp", found, 0, 2**63)


def _number_of(name: str, found: dict[str, Any], default: int, bound: int) -> int:
    value = found.get(name)
    if value is None:
        return default
    if type(value) is not int or not default <= value < bound:
        raise LineError(f"{name} is {value!r}, which is no number that it can be")
    return value


def line_writer(kind: str, columns: Sequence[str]) -> Callable[[ReadRecord], bytes]:
    """Return a function from a record to its line, with its end."""
    if kind == "json":
        return _to_json
    encode = _hex if kind == "hex" else _text

    def write(record: ReadRecord) -> bytes:
        cells = [_COLUMN[name](record, encode) for name in columns]
        return b"\t".join((*cells, encode(record.value))) + b"\n"

    return write


def _text(value: bytes | None) -> bytes:
    return NULL.encode() if value is None else value


def _hex(value: bytes | None) -> bytes:
    return NULL.encode() if value is None else binascii.hexlify(value)


def _headers(record: ReadRecord, encode: Callable[[bytes | None], bytes]) -> bytes:
    if record.headers is None:
        return b"-"
    return b",".join(name.encode() + b"=" + encode(value) for name, value in record.headers)


_COLUMN: Final[dict[str, Callable[[ReadRecord, Callable[[bytes | None], bytes]], bytes]]] = {
    "partition": lambda record, _: b"%d" % record.partition,
    "offset": lambda record, _: b"%d" % record.offset,
    "timestamp": lambda record, _: iso_time(record.timestamp_ms).encode(),
    "tier": lambda record, _: (record.tier or "").encode(),
    "headers": _headers,
    "key": lambda record, encode: encode(record.key),
}


def iso_time(timestamp_ms: int) -> str:
    """Return a time in UTC; "-" for none, and the number itself beyond the year 9999.

    >>> iso_time(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    if timestamp_ms < 0:
        return "-"
    try:
        found = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_ms)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def _to_json(record: ReadRecord) -> bytes:
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "key": _shown(record.key),
        "value": _shown(record.value),
        "headers": None
        if record.headers is None
        else [[name, _shown(value)] for name, value in record.headers],
    }
    if record.tier is not None:
        document["tier"] = record.tier
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _shown(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
