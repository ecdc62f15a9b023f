"""Files of Kafka's tools: what is read and written, and which of them are refused and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.cli import kafka_files


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def make(text: str) -> str:
        path = tmp_path / "file"
        path.write_text(text)
        return str(path)

    return make


def test_a_plan_is_read_as_it_was_written(write: Callable[[str], str]) -> None:
    plan = {("t", 1): (2, 3), ("a", 0): (1,)}
    text = json.dumps(kafka_files.reassignment_json(plan))
    assert text == (
        '{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": ["any"]},'
        ' {"topic": "t", "partition": 1, "replicas": [2, 3], "log_dirs": ["any", "any"]}]}'
    )
    assert kafka_files.read_reassignment(write(text)) == plan


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("[]", "has no list 'partitions'"),
        ('[{"topic": "t"}]', "does not name topic and partition"),
        ('[{"topic": "t", "partition": true, "replicas": [1]}]', "does not name topic and partition"),
        ('[{"topic": "t", "partition": 0}]', "t-0 has no list of replicas"),
        ('[{"topic": "t", "partition": 0, "replicas": ["1"]}]', "t-0 has no list of replicas"),
        ('[{"topic": "t", "partition": 0, "replicas": [1, 1]}]', "t-0 names a replica twice"),
        ('[{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]', "Firn's brokers choose"),
        (
            '[{"topic": "t", "partition": 0, "replicas": [1]},'
            ' {"topic": "t", "partition": 0, "replicas": [2]}]',
            "names t-0 twice",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(write: Callable[[str], str], rows: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        kafka_files.read_reassignment(write(f'{{"version": 1, "partitions": {rows}}}'))


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"version": 2, "partitions": [{}]}', "null"])
def test_another_document_is_refused(write: Callable[[str], str], text: str) -> None:
    with pytest.raises(ConfigError):
        kafka_files.read_election(write(text))


def test_offsets_of_deleted_records_are_read(write: Callable[[str], str]) -> None:
    text = '{"partitions": [{"topic": "t", "partition": 0, "offset": -1}], "version": 1}'
    assert kafka_files.read_record_offsets(write(text)) == {("t", 0): -1}
    with pytest.raises(ConfigError, match="has no offset"):
        kafka_files.read_record_offsets(write(text.replace("-1", "-2")))


def test_exported_offsets_are_quoted_as_kafkas_writer_does() -> None:
    long = "a-topic-of-more-than-24-characters"
    one = {"g": {("t", 0): 7, (long, 1): 8}}
    assert kafka_files.group_offsets_csv(one, has_group=False) == f'"{long}",1,8\nt,0,7\n'
    two = {'say "hi", g': {("t", 0): 7}, "b": {("t", 0): 1}}
    assert kafka_files.group_offsets_csv(two, has_group=True) == 'b,t,0,1\n"say ""hi"", g",t,0,7\n'


def test_exported_offsets_are_read_again(write: Callable[[str], str]) -> None:
    found = {"g, h": {("t", 0): 7, ("t", 1): 2}, "b": {("u", 0): 1}}
    path = write(kafka_files.group_offsets_csv(found, has_group=True))
    assert kafka_files.read_group_offsets(path, ["g, h", "b"]) == found
    path = write("t,0,7\n\nt,1,2\n")
    assert kafka_files.read_group_offsets(path, ["g"]) == {"g": {("t", 0): 7, ("t", 1): 2}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,0,7\nt,0\n", "line 2: expected"),
        ("t,0,x\n", "line 1: partition and offset"),
        ("t,0,-1\n", "line 1: partition and offset"),
        ("t,0,1\nt,0,2\n", "line 2: t-0 is there twice"),
        ("t,0,1\n" + "x" * 200_000, "line 2: field larger than field limit"),
    ],
)
def test_a_wrong_line_is_named(write: Callable[[str], str], text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        kafka_files.read_group_offsets(write(text), ["g"])
