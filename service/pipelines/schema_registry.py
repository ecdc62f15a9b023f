"""Client of a schema registry with Confluent's API: schemas by the ids in values' headers.

``GET /schemas/ids/{id}``, ``GET /subjects/{subject}/versions/{version}`` (docs.confluent.io, "Schema Registry
API Reference"). Anyone who may write to the registry decides what is decoded, and the size of responses, so
everything is bounded. Credentials are those of the process: ``SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO``
(``user:password``), else netrc's of the host. They go to that host alone: a redirection is an error. Calls
block.
"""

from __future__ import annotations

import base64
import http.client
import json
import netrc
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.base.backoff import doubled
from service.base.errors import ConfigError, StorageError
from service.pipelines.avro_references import full_name, inlined

CREDENTIALS: Final = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_REFERENCES: Final = 64
TIMEOUT_S: Final = 10.0
_ANSWER_S: Final = 30.0
_ATTEMPTS: Final = 7
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
_NOT_THERE: Final = frozenset({40401, 40402, 40403})
"""Confluent's error codes for unknown subjects, versions and schemas. Any other 404 is not a registry's."""
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})


def check_url(url: str) -> str:
    """Return the url without a trailing slash. `ConfigError` for one with credentials, or an invalid one."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"--schema-registry: no credentials in the url, as logs and plans show it; use {CREDENTIALS}"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"--schema-registry {url}: not an address as in https://host:8081")
    return url.rstrip("/")


class SchemaRegistry:
    """One registry. For one thread; responses are not cached."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._url = check_url(url)
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._jitter = jitter
        self._opener = urllib.request.build_opener(_NoRedirection)

    def schema(self, schema_id: int) -> Any | None:
        """Return the Avro schema with this id, with all its references; None where there is no such id.

        Raises `ConfigError` for a schema that is not Avro, `StorageError` where the registry does not answer.
        """
        return self._whole(self._get(f"/schemas/ids/{schema_id}"), f"schema {schema_id}")

    def newest(self, subject: str) -> tuple[int, Any] | None:
        """Return id and schema of a subject's newest version; None where there is no such subject."""
        answer = self._get(f"/subjects/{_quoted(subject)}/versions/latest")
        if answer is None:
            return None
        schema_id = answer.get("id")
        if not isinstance(schema_id, int):
            raise StorageError(f"the schema registry {self._url} answers subject {subject} without an id")
        return schema_id, self._whole(answer, f"subject {subject}")

    def _whole(self, answer: Mapping[str, Any] | None, what: str) -> Any | None:
        if answer is None:
            return None
        referenced: dict[str, Any] = {}
        schema = self._parsed(answer, what, referenced, {})
        return inlined(schema, referenced) if referenced else schema

    def _parsed(
        self, answer: Mapping[str, Any], what: str, referenced: dict[str, Any], followed: dict[Any, None]
    ) -> Any:
        kind = answer.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise ConfigError(f"{what} of the schema registry is {str(kind)[:20]}, not Avro")
        try:
            schema = json.loads(answer["schema"])
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            raise StorageError(f"{what} of the schema registry {self._url} is no schema: {e}") from e
        for reference in answer.get("references") or ():
            self._follow(reference, what, referenced, followed)
        return schema

    def _follow(
        self, reference: Any, what: str, referenced: dict[str, Any], followed: dict[Any, None]
    ) -> None:
        try:
            place = str(reference["subject"]), int(reference["version"])
        except (TypeError, KeyError, ValueError) as e:
            raise StorageError(f"{what} of the schema registry refers to {str(reference)[:100]}") from e
        if place in followed:
            return
        if len(followed) >= MAX_REFERENCES:
            raise ConfigError(f"{what} of the schema registry refers to more than {MAX_REFERENCES} schemas")
        followed[place] = None
        subject, version = place
        answer = self._get(f"/subjects/{_quoted(subject)}/versions/{version}")
        if answer is None:
            raise ConfigError(
                f"{what} refers to version {version} of {subject}, which is not in the registry"
            )
        schema = self._parsed(answer, f"{subject} {version}", referenced, followed)
        referenced[full_name(schema)] = schema

    def _get(self, path: str) -> Mapping[str, Any] | None:
        """Return the response's JSON object; None where the registry reports that there is none."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._once(path)
            except _Retry as e:
                if attempt == _ATTEMPTS:
                    raise StorageError(f"the schema registry {self._url} does not answer: {e}") from e
            wait_s = doubled(attempt, _FIRST_WAIT_S, _LONGEST_WAIT_S)
            self._sleep(wait_s * (0.5 + self._jitter() / 2))
        raise AssertionError("unreachable")

    def _once(self, path: str) -> Mapping[str, Any] | None:
        request = urllib.request.Request(self._url + path, headers=self._headers())
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                document = _json(_bounded(answer))
        except urllib.error.HTTPError as e:
            with e:
                self._refused(e)
            return None
        except (OSError, http.client.HTTPException) as e:
            raise _Retry(str(getattr(e, "reason", e)) or type(e).__name__) from e
        if not isinstance(document, dict):
            raise StorageError(f"{self._url}{path}: not a response of a schema registry")
        return document

    def _refused(self, error: urllib.error.HTTPError) -> None:
        """Raise for every error except that the schema or subject does not exist."""
        if error.code in _RETRIED:
            raise _Retry(f"HTTP {error.code}")
        if error.code in (401, 403):
            raise ConfigError(
                f"the schema registry {self._url} refuses access (HTTP {error.code}); credentials come from "
                f"{CREDENTIALS} or netrc, of the driver and of the executors"
            )
        document = _json(_bounded(error)) if error.code == 404 else None
        if not isinstance(document, dict) or document.get("error_code") not in _NOT_THERE:
            raise ConfigError(f"{error.url}: HTTP {error.code}, not a response of a schema registry")

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if (login := _login(urllib.parse.urlsplit(self._url).hostname or "")) is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode('utf-8')).decode('ascii')}"
        return headers


class _Retry(Exception):
    """An error that a retry may fix."""


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse redirections, as credentials are for one host; `urllib` then raises `HTTPError`."""


def _bounded(answer: Any) -> bytes:
    """Return the body. Raises where it is too large, or too slow."""
    deadline = time.monotonic() + _ANSWER_S
    found = bytearray()
    while piece := answer.read1(1 << 16):
        found += piece
        if len(found) > MAX_ANSWER_BYTES:
            raise StorageError(f"{answer.url}: a response of more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _Retry(f"a response takes longer than {_ANSWER_S:.0f} s")
    return bytes(found)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _login(host: str) -> str | None:
    if login := os.environ.get(CREDENTIALS):
        return login
    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except FileNotFoundError:
        return None
    except (netrc.NetrcParseError, OSError) as e:
        raise ConfigError(f"netrc: {e}") from e
    return None if found is None else f"{found[0]}:{found[2] or ''}"


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
