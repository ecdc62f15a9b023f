"""Requests to a schema registry, and its valid and invalid answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.base.errors import ConfigError, StorageError
from service.pipelines.schema_registry import CREDENTIALS, MAX_ANSWER_BYTES, SchemaRegistry, check_url
from tests.support.schema_registry import Registry, Reply, schema_registry, stand_in

INNER = {"type": "record", "name": "Inner", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}


def outer(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{i}", "type": one} for i, one in enumerate(types)]
    return {"type": "record", "name": "Outer", "namespace": "n", "fields": fields}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv(CREDENTIALS, raising=False)
    with schema_registry() as found:
        yield found


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """The stand-in, whatever else there is: it can be told to fail."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv(CREDENTIALS, raising=False)
    with stand_in() as found:
        yield found


def client(registry: Registry, waits: list[float] | None = None) -> SchemaRegistry:
    return SchemaRegistry(registry.url, sleep=([] if waits is None else waits).append, jitter=lambda: 1.0)


def test_schemas_are_found_by_id_and_by_subject(registry: Registry) -> None:
    subject = f"odd/name {uuid4()}-value"
    first = registry.register(subject, outer("int"))
    second = registry.register(subject, outer("int", {"type": "int", "logicalType": "date"}))
    assert first != second
    assert client(registry).schema(first) == outer("int")
    assert client(registry).newest(subject) == (second, outer("int", {"type": "int", "logicalType": "date"}))
    assert client(registry).schema(2_000_000_000) is None
    assert client(registry).newest(f"none-{uuid4()}") is None


def test_a_schema_that_refers_to_others_comes_as_one(registry: Registry) -> None:
    name = f"inner-{uuid4()}"
    registry.register(name, INNER)
    refers = [{"name": "n.Inner", "subject": name, "version": 1}]
    found = client(registry).schema(
        registry.register(f"outer-{uuid4()}", outer("Inner", "Inner"), references=refers)
    )
    inner = {"type": "record", "name": "n.Inner", "fields": [{"name": "x", "type": "int"}]}
    assert found is not None
    assert [field["type"] for field in found["fields"]] == [inner, "n.Inner"]


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_a_schema_that_is_not_avro_is_refused(own: Registry, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"schema 1 of the schema registry is {kind}, not Avro"):
        client(own).schema(own.register("x", {"type": "object"}, kind=kind))


def test_references_in_a_circle_or_without_end_do_not_hang(own: Registry) -> None:
    own.register("a", outer("int"), references=[{"name": "n.B", "subject": "b", "version": 1}])
    own.register("b", INNER, references=[{"name": "n.Outer", "subject": "a", "version": 1}])
    assert client(own).schema(1) is not None

    def endless(path: str) -> Reply | None:
        next_one = {"name": "n", "subject": path.split("/")[2] + "x", "version": 1}
        return 200, json.dumps({"schema": json.dumps(INNER), "references": [next_one]}).encode()

    own.fails.append(endless)
    with pytest.raises(ConfigError, match="more than 64 schemas"):
        client(own).schema(1)


def test_a_registry_that_is_busy_is_asked_again_and_one_that_is_away_is_named(own: Registry) -> None:
    number = own.register("x", INNER)
    busy: list[Reply] = [(503, b""), (429, b""), (500, b"{}")]
    own.fails.append(lambda _: busy.pop() if busy else None)
    waits: list[float] = []
    assert client(own, waits).schema(number) == INNER
    assert waits == [0.5, 1.0, 2.0]
    own.fails.append(lambda _: (503, b""))
    with pytest.raises(StorageError, match=r"does not answer: HTTP 503"):
        client(own).schema(number)
    with pytest.raises(StorageError, match="does not answer"):
        SchemaRegistry("http://127.0.0.1:1", sleep=lambda _: None).schema(1)


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        ((404, b"<html>"), ConfigError, "not a response of a schema registry"),
        ((401, b""), ConfigError, CREDENTIALS),
        ((302, b"http://127.0.0.1:9/elsewhere"), ConfigError, "HTTP 302"),
        ((200, b"[" * 100_000), StorageError, "not a response of a schema registry"),
        ((200, b"{}"), StorageError, "no schema"),
        ((200, b'{"schema": "{"}'), StorageError, "no schema"),
        ((200, b'{"schema": "{}", "references": [7]}'), StorageError, "refers to 7"),
        ((200, b"x" * (MAX_ANSWER_BYTES + 1)), StorageError, "more than"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    own: Registry, reply: Reply, error: type[Exception], said: str
) -> None:
    own.fails.append(lambda _: reply)
    with pytest.raises(error, match=said):
        client(own).schema(1)


def test_credentials_are_those_of_the_process(
    own: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    number = own.register("x", INNER)
    client(own).schema(number)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password pass\n")
    client(own).schema(number)
    monkeypatch.setenv(CREDENTIALS, "you:word")
    client(own).schema(number)
    sent = [None, *(f"Basic {base64.b64encode(login).decode()}" for login in (b"me:pass", b"you:word"))]
    assert own.credentials == sent


@pytest.mark.parametrize(
    "url", ["https://me:word@host", "https://me@host", "ftp://host", "host:8081", "http://h?a=b"]
)
def test_an_address_with_credentials_or_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--schema-registry") as refused:
        check_url(url)
    assert "word" not in str(refused.value)
