"""A schema registry for tests: a stand-in that answers as Confluent's API documents, or a real one.

With FIRN_SCHEMA_REGISTRY=URL tests use the registry there instead, as Apicurio's, whose URL ends in
``/apis/ccompat/v7``. What the stand-in knows: subjects with versions, one id for one schema,
references, schema types, error codes. It can be told to fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, bytes]


@dataclass
class Registry:
    """Address, and the requests to the stand-in: paths in order, and credentials."""

    url: str
    asked: list[str] = field(default_factory=list)
    credentials: list[str | None] = field(default_factory=list)
    fails: list[Callable[[str], Reply | None]] = field(default_factory=list)
    """Asked in turn before each answer: what is said instead, or None."""

    def register(
        self, subject: str, schema: Any, *, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Register a schema as serializers do; return its id."""
        body: dict[str, Any] = {"schema": json.dumps(schema), "references": references or []}
        if kind != "AVRO":
            body["schemaType"] = kind
        request = urllib.request.Request(
            f"{self.url}/subjects/{urllib.parse.quote(subject, safe='')}/versions",
            json.dumps(body).encode("utf-8"),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])


@contextlib.contextmanager
def schema_registry() -> Iterator[Registry]:
    """The real one where there is one, else `stand_in`."""
    if url := os.environ.get("FIRN_SCHEMA_REGISTRY"):
        yield Registry(url.rstrip("/"))
        return
    with stand_in() as found:
        yield found


@contextlib.contextmanager
def stand_in() -> Iterator[Registry]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    registry = Registry(f"http://127.0.0.1:{server.server_port}")
    server.registry = registry  # type: ignore[attr-defined]
    server.schemas = []  # type: ignore[attr-defined]
    server.subjects = {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        registry: Registry = self.server.registry
        registry.asked.append(self.path)
        registry.credentials.append(self.headers.get("Authorization"))
        for fail in registry.fails:
            if (reply := fail(self.path)) is not None:
                self._say(*reply)
                return None
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/schemas/ids/([0-9]+)", path):
            number = int(match[1])
            if not 1 <= number <= len(self.server.schemas):
                return self._error(404, 40403, "Schema not found")
            return self._json(self.server.schemas[number - 1])
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|[0-9]+)", path):
            return self._version(urllib.parse.unquote(match[1]), match[2])
        return self._say(404, b"<html>no such page</html>")

    def do_POST(self) -> None:
        match = re.fullmatch(r"/subjects/([^/]+)/versions", self.path)
        assert match is not None
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not found.get("references"):
            found.pop("references", None)
        schemas, subjects = self.server.schemas, self.server.subjects
        if found not in schemas:
            schemas.append(found)
        number = schemas.index(found) + 1
        subjects.setdefault(urllib.parse.unquote(match[1]), []).append(number)
        self._json({"id": number})

    def _version(self, subject: str, version: str) -> None:
        numbers = self.server.subjects.get(subject)
        if numbers is None:
            return self._error(404, 40401, f"Subject '{subject}' not found.")
        at = len(numbers) if version == "latest" else int(version)
        if not 1 <= at <= len(numbers):
            return self._error(404, 40402, f"Version {version} not found.")
        number = numbers[at - 1]
        return self._json(
            {"subject": subject, "version": at, "id": number, **self.server.schemas[number - 1]}
        )

    def _error(self, status: int, code: int, message: str) -> None:
        self._say(status, json.dumps({"error_code": code, "message": message}).encode("utf-8"))

    def _json(self, document: Any) -> None:
        self._say(200, json.dumps(document).encode("utf-8"))

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", body.decode("ascii"))
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests look at `Registry.asked`."""
