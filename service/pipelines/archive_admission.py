"""Admission of an archive run: checks, before it writes, that it fits its checkpoint and its topics.

The job document (`archive_job_document`) lies beside the checkpoint, a version for every change. A checkpoint
from before there was such a document is adopted where what can be compared matches. Needs pyspark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.errors import PySparkException

from service.base.errors import ConfigError, CorruptionError, FirnError
from service.pipelines.archive_job_document import (
    ArchiveJob,
    JobTopic,
    decode_job,
    differences,
    is_starting,
    merged,
    reading_of,
    starting_of,
)
from service.pipelines.archive_options import by_id, without_gone
from service.pipelines.checkpoint import Checkpoint, exists
from service.remote.format.manifest_codec import ClusterFile
from service.remote.reading.object_reader import open_cluster_file
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.spark.options import Assign, Choice
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.snapshots import ChosenPartition
from service.spark.store import open_store_of
from service.spark.stream.options import parse_stream
from service.spark.stream.reader import CAN_LIMIT

_KEPT: Final = "firn_job"
_PARTITIONED_BY: Final = ("topic", "date")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A run that may start as far as its topics and options go; `fits` compares its values."""

    checkpoint: Checkpoint
    known: ArchiveJob | None
    """The document of earlier runs, with topics added later; None where this is the first run."""
    requested: ArchiveJob
    gone: Mapping[str, str]
    """Topics that were archived and do not exist any more: name by id."""
    is_adopted: bool
    options: dict[str, str]
    """Options of the stream. They name topics by id: a topic created again with its name is another one."""
    topics: Mapping[str, str]
    """Topics to read: id by name."""
    choice: Choice
    """The requested topics; more may match it later."""

    def has_new_topics(self) -> bool:
        """Return whether the archive has requested topics that the query does not read.

        False where the store does not answer: the stream itself then reports that.
        """
        with (
            suppress(FirnError, OSError),
            ArchiveReader(open_store_of(parse_stream(self.options).read)) as archive,
        ):
            return any(str(one.topic_id) not in self.requested.topics for one in archive.choose(self.choice))
        return False

    def fits(self, values: Mapping[str, Any]) -> Admitted:
        """Return the run with the description of its values. `ConfigError` where the first run had others."""
        found = replace(self.requested, values=values)
        if self.known is not None and not self.is_adopted:
            _refuse(self.checkpoint, differences(self.known, found, self.gone))
        return replace(self, requested=found)

    def write_down(self) -> None:
        """Write the document beside the checkpoint, if it has changed: the last step before the query."""
        job = self.requested if self.known is None else merged(self.known, self.requested)
        if self.known is None or self.is_adopted or job.encode() != self.known.encode():
            self.checkpoint.add(_KEPT, job.encode())


def admit(
    args: argparse.Namespace, given: Mapping[str, str], options: Mapping[str, str], checkpoint: Checkpoint
) -> Admitted:
    """Check a run against its checkpoint and the archive.

    `given` are the options of the command line, `options` those of the stream with all defaults. Raises
    `ConfigError` that names what differs from the first run, or the topic that is gone.
    """
    if args.on_missing_topic == "skip":
        if not CAN_LIMIT:
            raise ConfigError("--on-missing-topic skip needs Spark 4.2: before, its offsets would be lost")
        options = {**options, "failOnMissingTopic": "false"}
    read = parse_stream(options).read
    store = open_store_of(read)
    with ArchiveReader(store) as archive:
        listed = {str(row.topic_id): row.name for row in archive.topics()}
        known = _known(checkpoint)
        before = known.topics if known is not None else _topics_of_offsets(checkpoint, listed)
        gone = {topic_id: one.name for topic_id, one in before.items() if topic_id not in listed}
        _report_gone(args, gone, listed)
        wanted = without_gone(read.choice, gone, listed.values())
        chosen = archive.choose(wanted)
    if not chosen:
        raise ConfigError("no topic of the archive is selected")
    stream = by_id(options, chosen)
    if known is not None and not any(is_starting(name) for name in given):
        stream = {name: text for name, text in stream.items() if not is_starting(name)} | {**known.starting}
    cluster = _cluster(store)
    requested = ArchiveJob(
        args.url,
        cluster.cluster_id if cluster is not None else None,
        _job_topics(chosen, with_partitions=isinstance(read.choice, Assign)),
        reading_of(stream),
        starting_of(stream),
        {"format": args.format, "url": _output(args, checkpoint)},
        {"kind": args.values} | ({"confluent_header": True} if args.confluent_header else {}),
        frozenset(one.cluster_id for one in cluster.ancestors) if cluster is not None else frozenset(),
    )
    is_adopted = known is None and not checkpoint.is_new
    if is_adopted:
        known = replace(requested, topics=before)
    if known is not None:
        _refuse(checkpoint, differences(replace(known, values=_kind(known)), requested, gone))
        _report_new(requested, known)
    topics = {one.topic: str(one.topic_id) for one in chosen}
    return Admitted(checkpoint, known, requested, gone, is_adopted, stream, topics, wanted)


def check_adopted(spark: Any, output: str, frame: Any) -> None:
    """Raise `ConfigError` where a Parquet output has other columns than the frame."""
    if exists(spark, f"{output}/_spark_metadata"):
        try:
            found = _columns(spark.read.parquet(output))
        except PySparkException as e:
            if e.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            return  # batches without rows have left no file with a schema
        wanted = _columns(frame)
        if differ := sorted(name for name in found | wanted if found.get(name) != wanted.get(name)):
            details = "; ".join(
                f"{n}: {found.get(n, 'none')} there, {wanted.get(n, 'none')} here" for n in differ
            )
            raise ConfigError(f"{output} was written with other columns: {details}")


def print_note(text: str) -> None:
    print(f"archive: {text}", file=sys.stderr)


def _known(checkpoint: Checkpoint) -> ArchiveJob | None:
    text = None if checkpoint.is_new else checkpoint.newest(_KEPT)
    return None if text is None else decode_job(text)


def _topics_of_offsets(checkpoint: Checkpoint, listed: Mapping[str, str]) -> dict[str, JobTopic]:
    """Return the topics of a checkpoint without a document: its offsets name them by id, and tell no more."""
    if checkpoint.is_new:
        return {}
    ids = {topic for topic, _ in checkpoint.offsets()}
    return {topic_id: JobTopic(listed.get(topic_id, topic_id), None) for topic_id in ids}


def _report_gone(args: argparse.Namespace, gone: Mapping[str, str], listed: Mapping[str, str]) -> None:
    for topic_id, name in sorted(gone.items()):
        again = ", and another topic has its name now" if name in listed.values() else ""
        what = f"topic {name} (id {topic_id}) is not in the archive any more: it was deleted{again}"
        if args.on_missing_topic == "fail":
            raise ConfigError(f"{what}; --on-missing-topic skip continues without it")
        print_note(f"{what}. Its output stays, and should it come back it continues where it was")


def _report_new(requested: ArchiveJob, known: ArchiveJob) -> None:
    for topic_id in sorted(requested.topics.keys() - known.topics.keys()):
        print_note(
            f"topic {requested.topics[topic_id].name} (id {topic_id}) is new and is read from its beginning"
        )


def _refuse(checkpoint: Checkpoint, found: Iterable[str]) -> None:
    if lines := "; ".join(found):
        raise ConfigError(
            f"checkpoint {checkpoint.url} is of a job with other arguments ({lines}); "
            "give those of its first run, or another checkpoint and output"
        )


def _kind(known: ArchiveJob) -> dict[str, Any]:
    return {name: known.values[name] for name in ("kind", "confluent_header") if name in known.values}


def _job_topics(chosen: Iterable[ChosenPartition], *, with_partitions: bool) -> dict[str, JobTopic]:
    parts: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    for one in chosen:
        names[str(one.topic_id)] = one.topic
        parts.setdefault(str(one.topic_id), []).append(one.partition)
    return {
        topic_id: JobTopic(name, tuple(sorted(parts[topic_id])) if with_partitions else None)
        for topic_id, name in names.items()
    }


def _output(args: argparse.Namespace, checkpoint: Checkpoint) -> str:
    return str(args.output) if args.format == "iceberg" else checkpoint.qualified(args.output)


def _cluster(store: ObjectStore) -> ClusterFile | None:
    """Return `cluster.json`, or None where it is unreadable, which an audit reports."""
    try:
        return open_cluster_file(store)
    except (ObjectNotFound, CorruptionError):
        return None


def _columns(frame: Any) -> dict[str, str]:
    return {
        field.name: field.dataType.simpleString()
        for field in frame.schema.fields
        if field.name not in _PARTITIONED_BY
    }
