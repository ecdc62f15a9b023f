"""Choice of the dumper of a file: by its name, else by its content."""

from __future__ import annotations

from collections.abc import Callable

from service.base.errors import ConfigError
from service.hot import names
from service.inspect import bucket, metadata, segment, small
from service.inspect.coordinators import dump_offsets_log, is_offsets_folder
from service.inspect.dump import Dump
from service.inspect.source import Source
from service.inspect.transactions import dump_transaction_log, is_transactions_folder
from service.remote.format.segment_object import MAGIC, MAGICS
from service.remote.format.tail_object import MAGIC as TAIL_MAGIC

Dumper = Callable[[Source], Dump]

_BY_NAME: dict[str, Dumper] = {
    names.LEADER_EPOCHS: small.dump_leader_epochs,
    names.PARTITION_METADATA: small.dump_partition_metadata,
    "recovery-point-offset-checkpoint": small.dump_offsets,
    "log-start-offset-checkpoint": small.dump_offsets,
    "replication-offset-checkpoint": small.dump_offsets,
    "meta.properties": small.dump_properties,
    "bootstrap.checkpoint": metadata.dump_bootstrap,
    "quorum-state": metadata.dump_quorum_state,
    "durable-offset": metadata.dump_durable_offset,
    ".kafka_cleanshutdown": small.dump_json,
    "HEAD": bucket.dump_head,
    "CUT": bucket.dump_cuts,
    "cluster.json": bucket.dump_cluster,
    "topics.json": bucket.dump_topics,
}
_BY_SUFFIX: dict[str, Dumper] = {
    ".seg": bucket.dump_segment,
    ".tail": bucket.dump_tail,
    names.OFFSET_INDEX: segment.dump_offset_index,
    names.TIME_INDEX: segment.dump_time_index,
    names.TXN_INDEX: segment.dump_transaction_index,
    names.SNAPSHOT: segment.dump_producer_snapshot,
    ".checkpoint": metadata.dump_metadata_snapshot,
}


def dump(source: Source, *, records: bool = False) -> Dump:
    """Dump `source`. With `records` a log's batches are shown with their records.

    Raises `ConfigError` where no format fits, `CorruptionError` where the bytes do not match the format.
    """
    name = source.name.removesuffix(names.DELETED)
    if name in _BY_NAME:
        return _BY_NAME[name](source)
    if name.endswith(names.LOG):
        if source.folder == names.CLUSTER_METADATA_DIR:
            return metadata.dump_metadata_log(source)
        if records and is_offsets_folder(source.folder):
            return dump_offsets_log(source)
        if records and is_transactions_folder(source.folder):
            return dump_transaction_log(source)
        return segment.dump_log(source, records=records)
    if name.endswith(bucket.PACKED):
        return bucket.dump_packed(source)
    for suffix, dumper in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return dumper(source)
    ending = source.read_suffix(len(MAGIC))
    if ending in MAGICS:
        return bucket.dump_segment(source)
    if ending == TAIL_MAGIC:
        return bucket.dump_tail(source)
    known = ", ".join((names.LOG, *_BY_SUFFIX, *bucket.PACKED, *_BY_NAME))
    raise ConfigError(f"{source.name}: not a format that Firn writes; known are {known}")
