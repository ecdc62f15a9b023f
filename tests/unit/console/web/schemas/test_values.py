"""Values by Avro, JSON and Protobuf schemas, of a registry and of a file, in the decoder's process."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import SystemClock
from service.base.errors import ConfigError
from service.base.threads import SystemThreads
from service.cli.console_schemas import decode_settings
from service.console.web.rows import Decoded
from service.console.web.schemas import decoder
from service.console.web.schemas.decoder import EncodedValue, ValueDecoder
from service.console.web.schemas.process import decoded
from service.console.web.schemas.settings import DecodeSettings, LocalSchema, parse_schema_file
from service.console.web.schemas.values import ValueReader
from tests.support.requirements import need_schemas
from tests.support.schema_registry import Registry, stand_in

READING = {
    "type": "record",
    "name": "Reading",
    "namespace": "firn",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "raw", "type": "bytes"},
    ],
}
BOMB = {"type": "array", "items": "null"}
PROTO = """
syntax = "proto3";
package firn;
import "place.proto";
import "google/protobuf/timestamp.proto";
message Other { int64 number = 1; message Inner { string word = 1; } }
message Reading { string city = 1; Place place = 2; google.protobuf.Timestamp at = 3; }
"""
TWO_DEGREES = b"\x09\x00\x00\x00\x00\x00\x00\x00\x40"
PLACE = 'syntax = "proto3"; package firn; message Place { double latitude = 1; }'


def avro(schema: Any, value: Any) -> bytes:
    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + struct.pack(">I", number) + data


@pytest.fixture
def registry() -> Iterator[Registry]:
    need_schemas()
    with stand_in() as found:
        yield found


@pytest.fixture
def decoders() -> Iterator[Any]:
    made: list[ValueDecoder] = []

    def make(settings: DecodeSettings) -> ValueDecoder:
        made.append(ValueDecoder(settings, SystemClock(), SystemThreads()))
        return made[-1]

    yield make
    for one in made:
        one.close()


def value(data: bytes, topic: str = "readings") -> EncodedValue:
    return EncodedValue(topic, "value", data)


def register_proto(registry: Registry, subject: str, text: str, references: Any = ()) -> int:
    """Register a schema whose text is not JSON."""
    import urllib.request

    body = {"schema": text, "schemaType": "PROTOBUF", "references": list(references)}
    request = urllib.request.Request(
        f"{registry.url}/subjects/{subject}/versions",
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.load(answer)["id"])


def test_values_of_a_registry_are_shown_by_their_schemas(registry: Registry, decoders: Any) -> None:
    reading = registry.register("readings-value", READING)
    place = register_proto(registry, "place", PLACE)
    assert place == reading + 1
    proto = register_proto(
        registry, "proto", PROTO, [{"name": "place.proto", "subject": "place", "version": 1}]
    )
    plain = registry.register("json", {"type": "object"}, kind="JSON")
    made = decoders(DecodeSettings({"url": registry.url}))
    found = made.decode(
        [
            value(framed(reading, avro(READING, {"city": "Oslo", "celsius": -3.5, "raw": b"\xff"}))),
            value(framed(plain, b'{"a": 1}')),
            # Reading is the second message of the file, Inner the first one within the first.
            value(framed(proto, b"\x02\x02" + b"\x0a\x04Lima" + b"\x12\x09\x09" + struct.pack("<d", 1.5))),
            value(framed(proto, b"\x04\x00\x00" + b"\x0a\x02hi")),
            value(framed(proto, b"\x00" + b"\x08\x07")),
            value(b"plain text"),
            value(framed(reading, b"\x08Oslo")),
            value(framed(99, b"x")),
            value(framed(proto, b"\x02\x2e" + b"\x0a\x04Lima")),
        ]
    )
    assert [json.loads(one.text) if one is not None and one.text else one for one in found[:6]] == [
        {"city": "Oslo", "celsius": -3.5, "raw": {"base64": "/w=="}},
        {"a": 1},
        {"city": "Lima", "place": {"latitude": 1.5}},
        {"word": "hi"},
        {"number": "7"},
        None,
    ]
    assert [one.what for one in found[:3]] == [
        f"Avro, schema {reading}", f"JSON Schema, schema {plain}", f"Protobuf, schema {proto}",
    ]  # fmt: skip
    assert [one.text for one in found[6:]] == [None] * 3
    assert f"schema {reading}: the value is not of its schema" in found[6].what
    assert "schema 99: the registry says: Schema not found" in found[7].what
    assert found[8].what == f"schema {proto}: the schema has no such message"
    asked = len(registry.asked)
    made.decode([value(framed(99, b"x")), value(framed(plain, b"1"))])
    assert len(registry.asked) == asked, "what is known is not asked again at once"


def test_values_that_never_end_cost_one_page_and_not_the_console(
    decoders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_schemas()
    monkeypatch.setattr(decoder, "VALUE_MS", 300)
    bomb = LocalSchema("AVRO", json.dumps(BOMB), id=7)
    plain = LocalSchema("JSON", "", id=8)
    made = decoders(DecodeSettings(None, (bomb, plain)))
    assert made.decode([value(framed(8, b"1"))]) == [Decoded("1", "JSON Schema, schema 8")]
    # A block of 2^62 nulls takes no bytes.
    endless = framed(7, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00")
    began = time.monotonic()
    found = made.decode([value(framed(8, b"1")), value(endless), value(framed(8, b"2"))])
    assert time.monotonic() - began < 5
    assert [one.text for one in found] == ["1", None, None]
    assert "took too long, or ran out of memory" in found[1].what
    found = made.decode([value(endless), value(framed(8, b"3"))])
    assert [one.text for one in found] == [None, "3"]
    assert found[0].what == "not decoded: a value of this schema took too long"


HOSTILE = [
    b"<html>",
    b"[" * 100_000,
    b"null",
    b'{"schema": 7}',
    b'{"schema": "' + b"x" * (2 << 20) + b'"}',
    b'{"schema": "no avro"}',
    b'{"schema": "x", "schemaType": "PROTOBUF"}',
    b'{"schema": "\\"string\\"", "schemaType": "<b>odd</b>"}',
    b'{"schema": "\\"string\\"", "references": [{"name": "../../x", "subject": "s", "version": 1}],'
    b' "schemaType": "PROTOBUF"}',
    b'{"schema": "\\"string\\"", "references": [{"name": "a", "subject": "s", "version": -1}]}',
]


def test_a_hostile_registry_is_a_reason_beside_the_bytes(registry: Registry, decoders: Any) -> None:
    registry.fails.append(
        lambda path: (200, HOSTILE[int(path.split("?")[0].rpartition("/")[2]) - 1]) if "ids" in path else None
    )
    made = decoders(DecodeSettings({"url": registry.url}))
    for number in range(1, len(HOSTILE) + 1):
        (found,) = made.decode([value(framed(number, b"x"))])
        assert found is not None
        assert found.text is None, number
        assert 0 < len(found.what) < 600


@pytest.mark.parametrize("names", [("a", "a/b.proto"), ("x" * 300,)])
def test_references_that_are_no_names_of_files_cost_one_value(
    registry: Registry, decoders: Any, names: tuple[str, ...]
) -> None:
    """The decoder's process goes on, and shows the page's other values."""
    place = register_proto(registry, "place", PLACE)
    references = [{"name": name, "subject": "place", "version": 1} for name in names]
    odd = register_proto(registry, "odd", 'syntax = "proto3"; message A { string a = 1; }', references)
    made = decoders(DecodeSettings({"url": registry.url}))
    refused, shown = made.decode([value(framed(odd, b"\0")), value(framed(place, b"\0" + TWO_DEGREES))])
    assert (refused.text, "names of files" in refused.what) == (None, True)
    assert json.loads(shown.text) == {"latitude": 2.0}


@pytest.mark.parametrize("fails_in", ["the schema's files", "protoc"])
def test_a_full_disk_is_not_taken_for_a_bad_schema(monkeypatch: pytest.MonkeyPatch, fails_in: str) -> None:
    need_schemas()
    from grpc_tools import protoc

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    if fails_in == "protoc":
        monkeypatch.setattr(protoc, "main", lambda _: 1)
    else:
        monkeypatch.setattr(Path, "write_text", full)
    reader = ValueReader(DecodeSettings(None, (LocalSchema("PROTOBUF", PLACE, "readings", "value"),)), None)
    answer = decoded(reader, "readings", "value", TWO_DEGREES)
    assert answer == [None, "the schema cannot be compiled here: No space left on device", True]
    monkeypatch.undo()
    text, kind = decoded(reader, "readings", "value", TWO_DEGREES)
    assert (json.loads(str(text)), kind) == ({"latitude": 2.0}, "Protobuf")


def test_a_registry_that_is_away_delays_one_value_and_is_one_line_of_the_log(
    decoders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    need_schemas()
    made = decoders(DecodeSettings({"url": "http://127.0.0.1:1"}))
    found = made.decode([value(framed(n, b"x")) for n in range(200)])
    assert all(one.text is None and "the schema registry does not answer" in one.what for one in found)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith("schemas: the schema registry does not answer (")
    assert line.endswith("; values of topic readings are shown as bytes")


def test_a_file_names_schemas_by_topic_and_by_id(tmp_path: Path, decoders: Any) -> None:
    need_schemas()
    (tmp_path / "reading.avsc").write_text(json.dumps(READING))
    (tmp_path / "schemas.json").write_text(
        json.dumps(
            [
                {"topic": "readings", "file": "reading.avsc"},
                {"topic": "readings", "part": "key", "type": "PROTOBUF", "schema": PLACE, "message": "Place"},
                {"id": 5, "type": "JSON"},
            ]
        )
    )
    made = decoders(decode_settings(None, None, str(tmp_path / "schemas.json")))
    found = made.decode(
        [
            value(avro(READING, {"city": "Oslo", "celsius": None, "raw": b""})),
            EncodedValue("readings", "key", b"\x09" + struct.pack("<d", 2.5)),
            value(framed(5, b"[1]"), "other"),
            value(framed(6, b"[1]"), "other"),
            value(b"text", "other"),
        ]
    )
    assert [one and one.what for one in found] == [
        "Avro", "Protobuf", "JSON Schema, schema 5", "schema 6 is not in the file of schemas", None,
    ]  # fmt: skip
    assert json.loads(found[1].text) == {"latitude": 2.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("{}", "expected a JSON list"),
        ("[1]", "entry 1: expected an object"),
        ('[{"topic": "t", "id": 1}]', "either a topic or an id"),
        ('[{"type": "JSON"}]', "either a topic or an id"),
        ('[{"id": -1, "type": "JSON"}]', "the id is not a number"),
        ('[{"id": true, "type": "JSON"}]', "the id is not a number"),
        ('[{"topic": "t", "type": "XML"}]', "type 'XML' is not one of"),
        ('[{"topic": "t", "part": "header"}]', "part 'header' is not one of"),
        ('[{"topic": "t"}]', "expected a file or a schema"),
        ('[{"topic": "t", "schemata": 1}]', "unknown field 'schemata'"),
        ('[{"topic": "t", "type": "PROTOBUF", "schema": "", "message": 3}]', "the message is not text"),
    ],
)
def test_a_wrong_file_of_schemas_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_schema_file(text, lambda name: name)


@pytest.mark.parametrize(
    ("url", "config"),
    [("http://user:pass@host:1", None), ("ftp://host", None), ("host:8081", None), (None, "file")],
)
def test_wrong_options_of_a_registry_are_refused(url: str | None, config: str | None) -> None:
    with pytest.raises(ConfigError, match="--schema-registry"):
        decode_settings(url, config, None)
