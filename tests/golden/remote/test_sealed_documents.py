"""HEAD, `cluster.json` and `topics.json`: every bit of them is proved, and those of before that are read."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError, UnknownVersion
from service.remote.format.documents import dump, is_damage_of, seal
from service.remote.format.manifest_codec import decode_cluster, decode_head, decode_topics
from tests.golden.remote.generate import FOLDERS, PARTITION, TOPIC_ID, content, readable

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "cluster.json": decode_cluster,
    "topics.json": decode_topics,
    f"data/{TOPIC_ID}/{PARTITION}/HEAD": decode_head,
}
UNSEALED = FOLDERS[2].parent / "unsealed-v2"
"""What version 2 wrote before it had the checksum: stays as it is."""


def flipped(data: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


@pytest.mark.parametrize("key", DECODERS)
def test_every_flipped_bit_is_noticed(key: str) -> None:
    data = content()[key]
    missed = []
    for damaged in flipped(data):
        try:
            DECODERS[key](damaged)
        except UnknownVersion:
            missed.append(damaged)  # damage must not be taken for something that is not to be repaired
        except CorruptionError:
            continue
        else:
            missed.append(damaged)
    assert missed == []


@pytest.mark.parametrize("key", DECODERS)
def test_truncated_and_extended_documents_are_refused(key: str) -> None:
    data = content()[key]
    for other in [*(data[:end] for end in range(len(data))), data + b"\n", data + b" ", data + data]:
        with pytest.raises(CorruptionError):
            DECODERS[key](other)


@pytest.mark.parametrize("key", DECODERS)
def test_the_checksum_is_of_every_byte_before_its_comma(key: str) -> None:
    """As the page about the format has it, without our code."""
    data = content()[key]
    body, name, rest = data.rpartition(b',"document_crc32c":')
    assert name
    assert rest == b"%d}" % crc32c(body)
    assert list(json.loads(data))[-1] == "document_crc32c"


@pytest.mark.parametrize("key", DECODERS)
def test_documents_of_before_the_checksum_are_read(key: str) -> None:
    older = (UNSEALED / key).read_bytes()
    assert b"document_crc32c" not in older
    newer = FOLDERS[2] / key
    assert DECODERS[key](older) == DECODERS[key](newer.read_bytes())
    assert readable(key, seal(json.loads(older))) == readable(key, newer.read_bytes())


@pytest.mark.parametrize("key", DECODERS)
def test_members_of_tomorrow_are_passed_over_where_the_checksum_proves_them(key: str) -> None:
    fields = json.loads((UNSEALED / key).read_bytes())
    expected = DECODERS[key](dump(fields))
    fields["of_tomorrow"] = [1]
    assert DECODERS[key](seal(fields)) == expected
    with pytest.raises(CorruptionError, match="of_tomorrow"):
        DECODERS[key](dump(fields))


@pytest.mark.parametrize("key", DECODERS)
def test_a_later_version_is_told_from_damage(key: str) -> None:
    fields = json.loads((UNSEALED / key).read_bytes()) | {"format_version": 3}
    with pytest.raises(UnknownVersion, match="3, this software knows 1 to 2"):
        DECODERS[key](seal(fields))
    with pytest.raises(CorruptionError) as caught:
        DECODERS[key](dump(fields))
    assert not isinstance(caught.value, UnknownVersion), "without a checksum it is a changed byte"


def test_a_later_layout_is_told_from_damage() -> None:
    fields = json.loads((UNSEALED / "cluster.json").read_bytes()) | {"layout_version": 3}
    with pytest.raises(UnknownVersion, match="layout version 3"):
        decode_cluster(seal(fields))


def test_a_setting_that_is_called_like_the_checksum_is_none() -> None:
    fields = json.loads((UNSEALED / "topics.json").read_bytes())
    fields["topics"][0]["configs"]["document_crc32c"] = "1"
    assert decode_topics(dump(fields)) == decode_topics(seal(fields))


@pytest.mark.parametrize("key", DECODERS)
def test_the_reference_reader_believes_no_changed_byte(key: str) -> None:
    script = FOLDERS[2].parents[3] / "docs" / "reference_reader.py"
    spec = importlib.util.spec_from_file_location("reference_reader", script)
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    data = content()[key]
    kind = json.loads(data)["format"]
    said = _without_checksum(reader.document(data, kind))
    assert said == _without_checksum(json.loads(data))
    for damaged in flipped(data):
        with suppress(ValueError):
            found = reader.document(damaged, kind)
            assert set(said.items()) <= set(_without_checksum(found).items()), damaged


def _without_checksum(fields: dict[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in fields.items() if name != "document_crc32c"}


def test_damage_is_told_from_what_another_process_wrote() -> None:
    ours = content()["cluster.json"]
    fields = json.loads((UNSEALED / "cluster.json").read_bytes())
    fields["writer"]["incarnation"] = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0ff"
    theirs = seal(fields)
    assert not is_damage_of(theirs, ours)
    assert not is_damage_of(ours, ours)
    assert not is_damage_of(ours[:-1], ours)
    assert all(is_damage_of(damaged, ours) for damaged in flipped(ours))
