"""Dumpers of the small files beside the segments: checkpoints and files of a log directory."""

from __future__ import annotations

from service.base.errors import CorruptionError
from service.base.files import read_checkpoint
from service.base.properties import parse_properties
from service.base.world import system_world
from service.hot.epochs import LeaderEpochs
from service.hot.log_dir import encode_uuid, read_topic_id
from service.inspect.dump import Dump
from service.inspect.source import Source
from service.records.checkpoint_lines import decode_offsets
from service.remote.format.fields import parse_json_object

MAX_SMALL_BYTES = 1 << 20


def dump_leader_epochs(source: Source) -> Dump:
    """Dump `leader-epoch-checkpoint`: the start offset of each leader epoch."""
    entries = LeaderEpochs.load(system_world().disk, source.local_path().absolute().parent).entries
    rows = ({"epoch": epoch, "start_offset": start} for epoch, start in entries)
    return Dump("leader epoch checkpoint", {}, (("epochs", rows),))


def dump_offsets(source: Source) -> Dump:
    """Dump `recovery-point-offset-checkpoint` and its like: an offset for each partition."""
    try:
        offsets = decode_offsets(read_checkpoint(system_world().disk, source.local_path()))
    except CorruptionError as e:
        raise CorruptionError(f"{source.name}: {e}") from e
    rows = (
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in offsets.items()
    )
    return Dump("offset checkpoint", {}, (("partitions", rows),))


def dump_properties(source: Source) -> Dump:
    """Dump `meta.properties`: the ids of the directory, its node and its cluster."""
    return Dump(source.name, parse_properties(_text(source)))


def dump_partition_metadata(source: Source) -> Dump:
    """Dump `partition.metadata`: the topic id of the directory's partition."""
    topic_id = read_topic_id(system_world().disk, source.local_path().absolute().parent)
    return Dump("partition metadata", {"topic_id": topic_id and encode_uuid(topic_id), "uuid": topic_id})


def dump_json(source: Source) -> Dump:
    """Dump `.kafka_cleanshutdown`: one JSON object."""
    return Dump(source.name, parse_json_object(source.read(MAX_SMALL_BYTES), source.name))


def _text(source: Source) -> str:
    try:
        return source.read(MAX_SMALL_BYTES).decode("utf-8")
    except UnicodeDecodeError as e:
        raise CorruptionError(f"{source.name}: not text: {e}") from e
