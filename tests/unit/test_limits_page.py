"""docs/limits.md has the numbers that the software has."""

from __future__ import annotations

import re

import pytest

from service.cli.line_input import MOST_OF_A_LINE
from service.metadata.controller.configs_control import MOST_CHARACTERS
from service.metadata.controller.requests import LONGEST_NAME, MAX_RECORDS_PER_OPERATION
from service.metadata.controller.scram_control import MAX_ITERATIONS
from service.metadata.controller.token_control import MOST_RENEWERS, MOST_TOKENS
from service.metadata.controller.topic_names import MAX_NAME_LENGTH
from service.metadata.raft.leading import MAX_REPLICAS
from service.node.fd_budget import budget
from service.remote.format.manifest_codec import MAX_MEMBERS, MAX_TOPICS, MAX_TOPICS_BYTES
from service.remote.format.metadata_ref import MAX_METADATA_BYTES
from service.remote.format.segment_object import MAX_LOG_LENGTH
from tests.support.processes import REPOSITORY

PAGE = (REPOSITORY / "docs" / "limits.md").read_text("utf-8")
SETTINGS = (REPOSITORY / "docs" / "configuration.md").read_text("utf-8")
ROWS = {row[1].strip(): row[2] for row in re.finditer(r"^\| ([^|]+)\| ([^|]+)\|", PAGE, re.MULTILINE)}


@pytest.mark.parametrize(
    ("row", "number"),
    [
        ("a topic's name", MAX_NAME_LENGTH),
        ("names of groups, clients, transactional ids, users", LONGEST_NAME),
        ("a value of a setting that is kept in the metadata", MOST_CHARACTERS),
        ("records that one admin request may write to the metadata", MAX_RECORDS_PER_OPERATION),
        ("delegation tokens that one principal has asked for", MOST_TOKENS),
        ("delegation tokens that one principal has asked for", MOST_RENEWERS),
        ("rounds of SCRAM", MAX_ITERATIONS),
        ("brokers and controllers", MAX_MEMBERS),
        ("brokers and controllers", MAX_REPLICAS),
        ("partitions of a node", budget(20_000, max_connections=2**31 - 1).partitions),
        ("partitions of a node", budget(1_048_576, max_connections=2_000).partitions),
        ("topics in `topics.json`", MAX_TOPICS),
    ],
)
def test_a_limit_is_that_of_the_code(row: str, number: int) -> None:
    assert f"{number:,}" in ROWS[row]


def test_sizes_are_those_of_the_code() -> None:
    assert "128 MiB" in ROWS["a line of `firn produce`"]
    assert MOST_OF_A_LINE == 128 << 20
    assert "2 GiB − 1 at most" in ROWS["a segment, and its object in the bucket"]
    assert MAX_LOG_LENGTH == (2 << 30) - 1
    assert "and 64 MiB" in ROWS["topics in `topics.json`"]
    assert MAX_TOPICS_BYTES == 64 << 20
    assert "1 GiB" in ROWS["a copy of the metadata"]
    assert MAX_METADATA_BYTES == 1 << 30


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("message.max.bytes", "1048588"),
        ("socket.request.max.bytes", f"{100 << 20}"),
        ("queued.max.request.bytes", f"{256 << 20}"),
        ("fetch.max.bytes", f"{55 << 20}"),
        ("log.segment.bytes", f"{1 << 30}"),
        ("offset.metadata.max.bytes", "4096"),
        ("max.incremental.fetch.session.cache.slots", "1000"),
        ("offsets.topic.num.partitions", "50"),
        ("transaction.state.log.num.partitions", "50"),
        ("transaction.max.timeout.ms", f"{15 * 60_000}"),
        ("firn.remote.cache.bytes", f"{128 << 20}"),
        ("firn.metrics.groups.max", "200"),
        ("firn.metrics.topics.max", "500"),
        ("log.cleaner.dedupe.buffer.size", f"{128 << 20}"),
    ],
)
def test_a_default_that_the_page_tells_is_the_default(key: str, default: str) -> None:
    assert f"`{key}`" in PAGE
    assert re.search(rf"^\| `{re.escape(key)}`[^|]*\| \w+ \| `{default}` \|", SETTINGS, re.MULTILINE)
