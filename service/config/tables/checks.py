"""Checks of addresses, ids and levels, for the tables and for command lines. [P]"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from typing import Final

_HTTP_REST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9.\-]+)(:[0-9]{1,5})?(/[!-~]*)?")
"""Host, port and path of a plain HTTP URL."""

_REPLICA: Final = re.compile(r"([0-9]{1,40}):([0-9]{1,40})", re.ASCII)
_MOST_ID: Final = 2**31 - 1

_HTTP_LISTENER: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9.\-]*):([0-9]{1,5})")

AUTO: Final = "auto"
MOST_PROCESSES: Final = 64

_KMS_KEY: Final = re.compile(r"[\w:/.+=,@-]{1,2048}", re.ASCII)

S3_SCHEMES: Final = ("s3", "s3a", "s3n")
"""Synonyms; the latter two are Hadoop's."""


def store_url_problem(text: str) -> str | None:
    """Return the reason why `text` is not the URL of an object store, or None."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in (*S3_SCHEMES, "gs", "az", "file") or not _is_printable(text):
        return "Expected a URL such as s3://bucket/prefix, gs://bucket/prefix, az://box/prefix or file:///dir"
    if "@" in rest.partition("/")[0]:
        return "Credentials do not belong in the URL; they come from the environment (the usual AWS chain)"
    if not rest.strip("/"):
        return "The URL names no bucket or directory"
    if scheme == "file" and not rest.startswith("/"):
        return "Expected file:// and an absolute path, as in file:///var/lib/firn"
    return None


def http_url_problem(text: str) -> str | None:
    """Return the reason why `text` is not the URL of a server, or None."""
    scheme, separator, rest = text.partition("://")
    if "@" in rest:
        return "Credentials do not belong in the URL"
    if not separator or scheme not in ("http", "https") or not _HTTP_REST.fullmatch(rest):
        return "Expected a URL such as http://127.0.0.1:9000"
    return None


def kms_key_problem(text: str) -> str | None:
    """Return the reason why `text` is not the id, ARN or alias of a key of KMS, or None."""
    if not _KMS_KEY.fullmatch(text):
        return "Expected a key of KMS by its ARN, its id or alias/NAME"
    return None


def http_listener_problem(text: str) -> str | None:
    """Return the reason why `text` is not an address to listen on, or None."""
    match = _HTTP_LISTENER.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        return "Expected host:port or :port, as in 127.0.0.1:9464; port 0 takes a free one"
    return None


def connection_overrides_problem(text: str) -> str | None:
    """Return the reason why `text` is not a list of addresses and counts, or None."""
    for entry in text.split(",") if text.strip() else ():
        address, _, count = entry.strip().rpartition(":")
        try:
            ipaddress.ip_address(address.strip("[]"))
        except ValueError:
            return f"Expected address:count,…, as in 192.0.2.1:10; {address!r} is not an address"
        if not (count.isascii() and count.isdigit() and len(count) <= 10 and int(count) <= _MOST_ID):
            return f"Expected address:count,…, as in 192.0.2.1:10; {count!r} is not a count"
    return None


def _is_printable(text: str) -> bool:
    return text.isprintable() and " " not in text


def processes_problem(text: str) -> str | None:
    """Return the reason why `text` is not a number of processes, or None."""
    is_number = text.isascii() and text.isdigit() and len(text) <= 9
    if text != AUTO and not (is_number and 1 <= int(text) <= MOST_PROCESSES):
        return f"Expected {AUTO}, or a number from 1 to {MOST_PROCESSES}"
    return None


def cluster_id_problem(text: str) -> str | None:
    """Return the reason why `text` is not a cluster id, or None."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16 or len(text) != 22 or int.from_bytes(raw, "big") < 2:
        return (
            "Expected 22 characters of URL-safe base64 (16 bytes), as 'kafka-storage random-uuid' makes them"
        )
    return None


def gzip_level_problem(text: str) -> str | None:
    """Return the reason why the number `text` is not a level of gzip, or None."""
    level = int(text)
    return None if level == -1 or 1 <= level <= 9 else "Value must be between 1 and 9 or equal to -1"


def cut_interval_problem(text: str) -> str | None:
    """Return the reason why `text` is not a time between two cuts, or None."""
    value = int(text)
    return None if value == -1 or 1000 <= value <= 3_600_000 else "Value must be -1 or from 1000 to 3600000"


def replica_list_problem(name: str) -> Callable[[str], str | None]:
    """Return a check for lists of replicas under the key `name` (Kafka `ThrottledReplicaListValidator`)."""
    words = (
        f"{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    )

    def problem(text: str) -> str | None:
        replicas = [one.strip() for one in text.split(",")]
        if "".join(replicas) == "*" or all(not one or _is_replica(one) for one in replicas):
            return None
        return words

    return problem


def _is_replica(text: str) -> bool:
    match = _REPLICA.fullmatch(text)
    return match is not None and max(int(match[1]), int(match[2])) <= _MOST_ID


def preallocation_problem(text: str) -> str | None:
    """Return the reason why segments cannot be preallocated, or None for false."""
    return "segments grow as they are written" if text.lower() == "true" else None
