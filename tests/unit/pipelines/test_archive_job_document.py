"""The document of an archive job, and which later runs are compatible with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.base.errors import ConfigError
from service.pipelines.archive_job_document import (
    ArchiveJob,
    JobTopic,
    decode_job,
    differences,
    merged,
    reading_of,
    starting_of,
)

JOB = ArchiveJob(
    "s3://bucket/prefix",
    "cluster",
    {"id-1": JobTopic("flights", None), "id-2": JobTopic("planes", (0, 2))},
    {"isolationLevel": "read_uncommitted", "includeHeaders": "false"},
    {"startingOffsets": "earliest"},
    {"format": "parquet", "url": "file:/lake"},
    {"kind": "raw"},
)


def test_a_job_reads_back() -> None:
    assert decode_job(JOB.encode()) == JOB


NEWER = JOB.encode().replace('"format_version": 1', '"format_version": 2')
ODD = JOB.encode().replace('"topics": {', '"topics": {"x": 7, ')


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, NEWER, ODD])
def test_a_malformed_archive_job_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the archive job's document"):
        decode_job(text)


def test_a_cluster_that_was_restored_from_the_jobs_own_is_no_other() -> None:
    heir = replace(JOB, cluster_id="heir", ancestors=frozenset(("another", "cluster")))
    assert differences(JOB, heir) == []
    assert merged(JOB, heir).cluster_id == "heir"
    assert differences(heir, replace(JOB, cluster_id="another")) == ["cluster: heir there, another here"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cluster_id": "other"}, "cluster: cluster there, other here"),
        ({"cluster_id": None, "url": "s3://other"}, "archive: s3://bucket/prefix there, s3://other here"),
        ({"output": {"format": "iceberg", "url": "file:/lake"}}, "format: parquet there, iceberg here"),
        ({"topics": {"id-1": JobTopic("flights", None)}}, "topics: flights, planes there, flights here"),
        (
            {"topics": {**JOB.topics, "id-2": JobTopic("planes", None)}},
            "partitions of planes: [0, 2] there, none here",
        ),
        ({"reading": {**JOB.reading, "where": "offset > 7"}}, "where: none there, offset > 7 here"),
        ({"values": {"kind": "json", "schema": {"a": 1}}}, "values: raw there, json here"),
    ],
)
def test_incompatible_job_changes_are_named_with_both_values(changed: dict[str, Any], said: str) -> None:
    assert differences(JOB, JOB) == []
    assert said in differences(JOB, replace(JOB, **changed))


def test_the_cluster_decides_and_not_its_address_and_new_topics_do_no_harm() -> None:
    asked = replace(JOB, url="s3://copy", topics={**JOB.topics, "id-3": JobTopic("trains", None)})
    assert differences(JOB, asked) == []
    assert merged(JOB, asked).topics == asked.topics
    assert differences(JOB, replace(JOB, topics={"id-1": JobTopic("flights", None)}), gone=["id-2"]) == []


def test_schemas_come_to_those_that_were_known_and_none_becomes_another() -> None:
    known = replace(JOB, values={"kind": "avro", "schemas": {"7": {"a": 1}}})
    later = replace(JOB, values={"kind": "avro", "schemas": {"9": {"b": 1}}})
    assert differences(known, later) == []
    assert merged(known, later).values["schemas"] == {"7": {"a": 1}, "9": {"b": 1}}
    other = replace(JOB, values={"kind": "avro", "schemas": {"7": {"c": 1}}})
    assert differences(known, other) == ['schema 7: {"a": 1} there, {"c": 1} here']


def test_performance_and_credential_options_are_not_part_of_a_job() -> None:
    options = {"url": "x", "subscribe": "a", "fetchBytes": "64k", "kafka.sasl.password": "secret"}
    options |= {
        "aws.profile": "p",
        "storeTimeout": "10m",
        "startingTimestamp": "5",
        "includeHeaders": "FALSE",
        "where": "offset > 7",
    }
    assert reading_of(options) == {
        "isolationLevel": "read_uncommitted",
        "includeHeaders": "false",
        "where": "offset > 7",
    }
    assert starting_of(options) == {"startingTimestamp": "5"}
