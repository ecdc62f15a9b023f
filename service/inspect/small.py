"""The small files beside the segments: checkpoints and what a log directory says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from service.base.errors import CorruptionError
from service.base.files import read_checkpoint
from service.base.properties import parse_properties
from service.base.world import system_world
from service.hot.epochs import LeaderEpochs
from service.hot.log_dir import encode_uuid, read_topic_id
from service.inspect.dump import Dump, Row
from service.inspect.source import Source
from service.remote.format.fields import parse_json_object

MAX_SMALL_BYTES = 1 << 20


def dump_leader_epochs(source: Source) -> Dump:
    """`leader-epoch-checkpoint`: which leader epoch began at which offset."""
    entries = LeaderEpochs.load(system_world().disk, source.local_path().absolute().parent).entries
    rows = ({"epoch": epoch, "start_offset": start} for epoch, start in entries)
    return Dump("leader epoch checkpoint", {}, (("epochs", rows),))


def dump_offsets(source: Source) -> Dump:
    """`recovery-point-offset-checkpoint` and its like: an offset for each partition."""
    lines = read_checkpoint(system_world().disk, source.local_path())

    def rows() -> Iterator[Row]:
        for line in lines:
            topic, partition, offset = [*line.rsplit(" ", 2), "", ""][:3]
            if not (topic and partition.isdigit() and offset.isdigit()):
                raise CorruptionError(f"{source.name}: expected topic, partition and offset: {line!r}")
            yield {"topic": topic, "partition": int(partition), "offset": int(offset)}

    return Dump("offset checkpoint", {}, (("partitions", rows()),))


def dump_properties(source: Source) -> Dump:
    """`meta.properties`: whose directory this is."""
    return Dump(source.name, parse_properties(_text(source)))


def dump_partition_metadata(source: Source) -> Dump:
    """`partition.metadata`: the topic id of the partition that lies here."""
    topic_id = read_topic_id(system_world().disk, source.local_path().absolute().parent)
    return Dump("partition metadata", {"topic_id": topic_id and encode_uuid(topic_id), "uuid": topic_id})


def dump_json(source: Source) -> Dump:
    """`.kafka_cleanshutdown`: one JSON object."""
    return Dump(source.name, parse_json_object(source.read(MAX_SMALL_BYTES), source.name))


def _text(source: Source) -> str:
    try:
        return source.read(MAX_SMALL_BYTES).decode("utf-8")
    except UnicodeDecodeError as e:
        raise CorruptionError(f"{source.name}: not text: {e}") from e
