"""The document beside an archive job's checkpoint, and its comparison with later runs. [P]

``{"format": "firn-archive-job", "format_version": 1, "url": …, "cluster_id": …, "topics": {ID: {"name": …,
"partitions": null or [0, 1]}}, "reading": {OPTION: …}, "starting": {OPTION: …}, "output": {"format": …,
"url": …}, "values": {"kind": "raw" | "json" | "avro", …}}``

A checkpoint records how far each partition was read, and nothing about the output. So every setting that
decides which rows are read and how they are written is compared before anything is written; settings of
speed, place and credentials are not in the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from service.base.errors import ConfigError
from service.spark.options import CHOICES, STORE_OPTIONS

_FORMAT: Final = "firn-archive-job"
_VERSION: Final = 1
_FREE: Final = frozenset(
    name.lower()
    for name in (
        "url",
        *STORE_OPTIONS,
        "minPartitions",
        "maxRecordsPerPartition",
        "maxPartitionBytes",
        "parallelism",
        "fetchBytes",
        "readAheadBytes",
        "batchBytes",
        "batchRows",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "maxTriggerDelay",
        "refreshInterval",
        "failOnDataLoss",
        "failOnMissingTopic",
        "bootstrap.servers",
        "kafkaConsumer.pollTimeoutMs",
        "groupIdPrefix",
        *CHOICES,
    )
)
"""Options that may change without changing rows. Topics are compared by id. An option that is in no list
counts as one that decides over rows."""
_FREE_PREFIXES: Final = ("kafka.",)
_DEFAULTS: Final = {"isolationLevel": "read_uncommitted"}
_WORDS: Final = ("includeHeaders", "isolationLevel")
"""Options whose values are case-insensitive."""
_SHOWN_CHARS: Final = 300


class JobTopic(NamedTuple):
    """A topic that is archived; `partitions` is None where all are, including future ones."""

    name: str
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """The document. Topics are by id; `reading` and `starting` are options of the source. `ancestors`, not in
    the document: the clusters that the archive's was restored from."""

    url: str
    cluster_id: str | None
    topics: Mapping[str, JobTopic]
    reading: Mapping[str, str]
    starting: Mapping[str, str]
    output: Mapping[str, str]
    values: Mapping[str, Any]
    ancestors: frozenset[str] = frozenset()

    def encode(self) -> str:
        topics = {
            topic_id: {"name": one.name, "partitions": None if one.partitions is None else [*one.partitions]}
            for topic_id, one in self.topics.items()
        }
        document = {
            "format": _FORMAT,
            "format_version": _VERSION,
            "url": self.url,
            "cluster_id": self.cluster_id,
            "topics": topics,
            "reading": dict(self.reading),
            "starting": dict(self.starting),
            "output": dict(self.output),
            "values": dict(self.values),
        }
        return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)


def decode_job(text: str) -> ArchiveJob:
    """Parse a document of `encode`; `ConfigError` for anything else."""
    try:
        document = json.loads(text)
        if (document["format"], document["format_version"]) != (_FORMAT, _VERSION):
            raise ConfigError(
                f"the archive job's document has format {document['format']} "
                f"{document['format_version']}, this firn supports {_FORMAT} {_VERSION}"
            )
        return ArchiveJob(
            str(document["url"]),
            None if document["cluster_id"] is None else str(document["cluster_id"]),
            {str(topic_id): _topic(one) for topic_id, one in document["topics"].items()},
            _texts(document["reading"]),
            _texts(document["starting"]),
            _texts(document["output"]),
            dict(document["values"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise ConfigError(f"the archive job's document cannot be read: {str(e)[:200]}") from e


def _topic(document: Mapping[str, Any]) -> JobTopic:
    parts = document["partitions"]
    return JobTopic(str(document["name"]), None if parts is None else tuple(int(part) for part in parts))


def _texts(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(text) for name, text in document.items()}


def reading_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return a stream's options that decide over rows and columns, except where it starts."""
    decisive = {
        name: text
        for name, text in options.items()
        if name.lower() not in _FREE and not name.lower().startswith(_FREE_PREFIXES) and not is_starting(name)
    }
    return _DEFAULTS | {
        name: text.strip().lower() if name in _WORDS else text for name, text in decisive.items()
    }


def starting_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return a stream's options that decide where it starts."""
    return {name: text for name, text in options.items() if is_starting(name)}


def is_starting(name: str) -> bool:
    return name.lower().startswith("starting")


def differences(known: ArchiveJob, requested: ArchiveJob, gone: Iterable[str] = ()) -> list[str]:
    """Return the differences that would harm the output, each with both values.

    New topics are harmless. `gone` are ids that the archive does not have any more, so that no run could
    request them. Where both runs know the cluster, its id is compared and not its address; one that was
    restored from the other is the same.
    """
    found = []
    if known.cluster_id is not None and requested.cluster_id is not None:
        if known.cluster_id not in requested.ancestors:
            found += _differ("cluster", known.cluster_id, requested.cluster_id)
    else:
        found += _differ("archive", known.url, requested.url)
    for name in sorted(known.output.keys() | requested.output.keys()):
        found += _differ(
            "output" if name == "url" else name, known.output.get(name), requested.output.get(name)
        )
    found += _topics_differ(known, requested, frozenset(gone))
    for one, other in ((known.reading, requested.reading), (known.starting, requested.starting)):
        for name in sorted(one.keys() | other.keys()):
            found += _differ(name, one.get(name), other.get(name))
    return found + _values_differ(known.values, requested.values)


def _differ(name: str, there: Any, here: Any) -> list[str]:
    return [] if there == here else [f"{name}: {_shown(there)} there, {_shown(here)} here"]


def _topics_differ(known: ArchiveJob, requested: ArchiveJob, gone: frozenset[str]) -> list[str]:
    left_out = sorted(known.topics.keys() - requested.topics.keys() - gone)
    if left_out:
        there, here = (
            ", ".join(sorted(one.name for one in topics.values()))
            for topics in (known.topics, requested.topics)
        )
        return [f"topics: {there} there, {here} here"]
    return [
        line
        for topic_id, one in sorted(known.topics.items())
        if topic_id in requested.topics
        for line in _differ(
            f"partitions of {one.name}", one.partitions, requested.topics[topic_id].partitions
        )
    ]


def _values_differ(known: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    found = []
    for name in sorted((known.keys() | requested.keys()) - {"schemas"}):
        label = "values" if name == "kind" else f"values' {name.replace('_', ' ')}"
        found += _differ(label, known.get(name), requested.get(name))
    there, here = known.get("schemas") or {}, requested.get("schemas") or {}
    for schema_id in sorted(there.keys() & here.keys()):
        found += _differ(f"schema {schema_id}", there[schema_id], here[schema_id])
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def merged(known: ArchiveJob, requested: ArchiveJob) -> ArchiveJob:
    """Return the document for later runs: topics and schemas of both, everything else of the current run."""
    values = dict(requested.values)
    schemas = {**(known.values.get("schemas") or {}), **(requested.values.get("schemas") or {})}
    if schemas:
        values["schemas"] = schemas
    return replace(requested, topics={**known.topics, **requested.topics}, values=values)
