"""Probe of whether an S3 store compares what arrives with what was signed: it sends damage.

Every request is signed over the SHA-256 of its body. AWS refuses a body that has another one; some
S3-compatible servers accept it. obstore cannot send such a request, so this one is signed here (AWS Signature
Version 4, headers only).
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from service.remote.stores.s3_address import S3Address

_TIMEOUT_S: Final = 10.0
_SENT: Final = b"what was sent"
_ARRIVED: Final = b"what was senT"


class Keys(NamedTuple):
    """Static credentials; `token` is None where they are not of a session."""

    access_key_id: str
    secret_access_key: str
    token: str | None


def refuses_damage(
    address: S3Address, keys: Keys, key: str, now_ms: int, headers: tuple[tuple[str, str], ...] = ()
) -> bool | None:
    """Put an object as `key`, then the same with a damaged body; return None where the probe has to be
    repeated. `headers`, names in lower case, are those that the bucket demands of writes.

    False for a store that accepts both, so does not compare, and for one that refuses both, of which nothing
    is learned. The caller deletes the object.
    """
    assert address.endpoint is not None
    try:
        sound = _put(address, keys, key, now_ms, _SENT, headers)
        damaged = _put(address, keys, key, now_ms, _ARRIVED, headers) if sound == 200 else sound
    except (OSError, HTTPException):
        return None
    if damaged == 429 or damaged >= 500:
        return None
    return sound == 200 and damaged >= 400


def _put(
    address: S3Address,
    keys: Keys,
    key: str,
    now_ms: int,
    body: bytes,
    more: tuple[tuple[str, str], ...],
) -> int:
    """Return the status of a PUT of `body` that is signed for `_SENT`."""
    place = urlsplit(str(address.endpoint))
    path = "/".join(part for part in (place.path.rstrip("/"), address.bucket, address.prefix, key) if part)
    path = quote(path if path.startswith("/") else f"/{path}", safe="/-_.~")
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    headers = signed_headers("PUT", place.netloc, path, address.region, keys, at, _SENT, more)
    client = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = client(place.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("PUT", path, body, headers)
        answer = connection.getresponse()
        answer.read(1 << 16)
        return answer.status
    finally:
        connection.close()


def signed_headers(
    method: str,
    host: str,
    path: str,
    region: str,
    keys: Keys,
    at: datetime,
    body: bytes,
    more: tuple[tuple[str, str], ...] = (),
) -> dict[str, str]:
    """Return the headers of a request for S3 without a query. `path` is percent-encoded, names in `more`
    lower-case.

    Source: AWS General Reference, "Create a signed AWS API request".
    """
    digest, time = hashlib.sha256(body).hexdigest(), at.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": time, **dict(more)}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = sorted(headers)
    listed = ";".join(names)
    canonical = "\n".join(
        (method, path, "", *(f"{name}:{headers[name]}" for name in names), "", listed, digest)
    )
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    secret = f"AWS4{keys.secret_access_key}".encode()
    for step in (*scope.split("/"), text):
        secret = hmac.new(secret, step.encode(), hashlib.sha256).digest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, "
        f"SignedHeaders={listed}, Signature={secret.hex()}"
    )
    return headers
