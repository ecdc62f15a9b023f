"""Values of forms, checked: numbers, names, settings, headers, bytes. [P]

Raises `ConfigError`, whose text says which field is wrong and how; it never repeats a value that may be a
secret.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping
from typing import Final

from service.base.errors import ConfigError
from service.client.places import NamedPartitions, numbers_of

MOST_SETTINGS: Final = 100
MOST_HEADERS: Final = 100
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
"""The ends of lines in a form; `splitlines` would also part a value at a few characters of it."""
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1
NOTHING: Final = "none"
TEXT: Final = "text"
JSON: Final = "json"
HEX: Final = "hex"


def name(values: Mapping[str, str], field: str, label: str) -> str:
    """Return a name that must be there; spaces around it are not of it."""
    found = values.get(field, "").strip()
    if not found:
        raise ConfigError(f"{label} is missing")
    return found


def whole(
    values: Mapping[str, str],
    field: str,
    label: str,
    least: int,
    most: int = _INT32,
    default: int | None = None,
) -> int:
    """Return a whole number; `default` for an empty field, if there is one."""
    written = values.get(field, "").strip()
    if not written and default is not None:
        return default
    digits = written.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(_INT64))
    if not is_number or not least <= int(written) <= most:
        raise ConfigError(f"{label} is a number from {least:,} to {most:,}")
    return int(written)


def offset(values: Mapping[str, str], field: str, label: str, *, is_signed: bool = False) -> int:
    return whole(values, field, label, -_INT64 if is_signed else 0, _INT64)


def settings(values: Mapping[str, str], field: str, label: str) -> dict[str, str]:
    """Return KEY=VALUE lines as settings; empty lines are nothing."""
    found: dict[str, str] = {}
    for number, line in enumerate(_LINE_END.split(values.get(field, "")), 1):
        if not line.strip():
            continue
        key, separator, value = line.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError(f"{label}, line {number}: expected KEY=VALUE")
        if key in found:
            raise ConfigError(f"{label}: {key} is there twice")
        found[key] = value.strip()
    _check_count(len(found), MOST_SETTINGS, label)
    return found


def keys(values: Mapping[str, str], field: str, label: str) -> list[str]:
    """Return the words of a field, one a line."""
    found = list(dict.fromkeys(values.get(field, "").split()))
    if strange := [key for key in found if "=" in key]:
        raise ConfigError(f"{label}: {strange[0].partition('=')[0]}: keys alone, without values")
    _check_count(len(found), MOST_SETTINGS, label)
    return found


def headers(values: Mapping[str, str], field: str, label: str) -> list[tuple[str, bytes]]:
    """Return NAME=VALUE lines as headers of a record; a name may come more than once."""
    found: list[tuple[str, bytes]] = []
    for number, line in enumerate(_LINE_END.split(values.get(field, "")), 1):
        if not line.strip():
            continue
        key, separator, value = line.partition("=")
        if not separator or not key:
            raise ConfigError(f"{label}, line {number}: expected NAME=VALUE")
        found.append((key, _utf8(value, label)))
    _check_count(len(found), MOST_HEADERS, label)
    return found


def content(values: Mapping[str, str], field: str, label: str) -> bytes | None:
    """Return bytes, written as the field ``<field>_form`` says; None if it says that there are none."""
    form, written = values.get(f"{field}_form", NOTHING), values.get(field, "")
    if form == NOTHING:
        if written:
            raise ConfigError(f"{label}: there is text in the field, and {label.lower()} is to be none")
        return None
    # What a browser sends has CR LF, whatever was typed.
    written = written.replace("\r\n", "\n")
    if form == HEX:
        try:
            return binascii.unhexlify("".join(written.split()))
        except (ValueError, UnicodeEncodeError):
            raise ConfigError(f"{label}: not hexadecimal digits, two for each byte") from None
    if form == JSON:
        try:
            _JSON.decode(written)
        except RecursionError:
            raise ConfigError(f"{label} is nested too deep to be checked") from None
        except json.JSONDecodeError as e:
            raise ConfigError(f"{label} is no JSON: line {e.lineno}, column {e.colno}") from None
    elif form != TEXT:
        raise ConfigError(f"{label}: written in an unknown way")
    return _utf8(written, label)


def partitions(values: Mapping[str, str], topic: str) -> NamedPartitions:
    """Return the partitions of `topic` that the field ``partitions`` names, all if it is empty."""
    written = values.get("partitions", "").strip()
    try:
        return NamedPartitions(topic, numbers_of(written) if written else None)
    except ConfigError as e:
        raise ConfigError(f"Partitions: {e}") from None


def choice(values: Mapping[str, str], field: str, label: str, options: Mapping[str, object]) -> str:
    found = values.get(field, "")
    if found not in options:
        raise ConfigError(f"{label}: one of {', '.join(options)}")
    return found


def _no_constant(word: str) -> None:
    """Refuse NaN and Infinity, which Python takes and JSON does not have."""
    raise json.JSONDecodeError(word, word, 0)


class _PatientDecoder(json.JSONDecoder):
    """Decoder in Python alone: that in C keeps the interpreter, and the loop waits, until a text is read."""

    def __init__(self) -> None:
        super().__init__(parse_int=str, parse_constant=_no_constant)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_JSON: Final = _PatientDecoder()


def _utf8(text: str, label: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{label} has characters that are none") from None


def _check_count(count: int, most: int, label: str) -> None:
    if count > most:
        raise ConfigError(f"{label}: {count:,} are too many for the console, which takes {most:,}")
