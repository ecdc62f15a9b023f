"""The archive at isolation 1: where it ends, the rows of its segments, and what Spark's plan reads of it.

X12  the archive ends at or below the LSO, and its rows are those of its batches
X4   a committed read by Spark's plan shows what is committed, and nothing else
"""

from __future__ import annotations

from collections import defaultdict

from service.records.batch import complete_headers
from service.records.decode import records_of
from service.records.txn_rows import decode_rows
from service.remote.reading.object_reader import open_footer_of, read_section
from service.spark.options import parse_options
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.ranges import plan_ranges, resolve_ranges
from simulator.client import Record
from simulator.cluster.replicas import Key
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import Violation


def examine_archives(world: TransactionalWorld) -> None:
    """Check every partition that has an archive. Raises `Violation`."""
    if not world.tiered or world.foreign:
        return
    for key, entry in world.oracle.tiers.entries.items():
        if key in world.oracle.replicas.shaken or key[0] in world._deleted() or entry.is_given_up:
            continue
        name = f"{world.transactions.name(key)}-{key[1]}"
        placed = world.oracle.replicas.placed.get(key)
        seen = None if placed is None else world.oracle.replicas.seen.get((placed.leader, key))
        if seen is not None and entry.end_offset > seen.partition.last_stable_offset:
            stable = seen.partition.last_stable_offset
            raise Violation(f"X12: the archive of {name} ends at {entry.end_offset}, its LSO is {stable}")
        _rows_are_those_of_its_batches(world, key, name, entry.manifest_key)
    _spark_reads_what_is_committed(world)


def _rows_are_those_of_its_batches(world: TransactionalWorld, key: Key, name: str, manifest_key: str) -> None:
    replay = world.transactions.replays.get(key)
    store = world.archive.store(f"data/{key[0]}/")
    for segment in world.archive.named(manifest_key).segments:
        footer = open_footer_of(store, segment)
        rows = decode_rows(read_section(store, segment.key, footer.sections["txn_index"]))
        known = [] if replay is None else replay.rows
        wanted = [row for row in known if segment.base_offset <= row[2] <= segment.last_offset]
        if [tuple(row) for row in rows] != wanted:
            raise Violation(f"X12: {segment.key} of {name} has rows {rows}, by a replay {wanted}")


def _spark_reads_what_is_committed(world: TransactionalWorld) -> None:
    topics = [topic for topic in world.topics if topic.tiered and not topic.deleted]
    listed = [
        topic for topic in topics if any(key[0] == topic.topic_id for key in world.oracle.tiers.entries)
    ]
    if not listed:
        return
    names = ",".join(topic.name for topic in listed)
    options = parse_options(
        {"url": "memory://sim", "subscribe": names, "startingOffsets": "earliest", "endingOffsets": "latest",
         "isolationLevel": "read_committed"}
    )  # fmt: skip
    ids = {topic.name: topic.topic_id for topic in listed}
    shown: dict[Key, list[Record]] = defaultdict(list)
    with ArchiveReader(world.archive.store(""), read_committed=True, threads=1) as archive:
        ranges = resolve_ranges(archive, options)
        for split in plan_ranges(archive, ranges, options):
            for piece in split.pieces:
                key = ids[piece.topic], piece.partition
                data = world.archive.object(piece.entry.key) or b""
                log = data[: piece.entry.log_length]
                shown[key] += _records(log, piece.begin_offset, piece.end_offset, piece.aborted)
    for one in ranges:
        chosen = one.snapshot.chosen
        key = chosen.topic_id, chosen.partition
        name = f"{chosen.topic}-{chosen.partition} by Spark"
        world.transactions.saw(key, name, one.begin_offset, one.end_offset, shown[key])


def _records(log: bytes, begin: int, end: int, aborted: tuple[tuple[int, int, int], ...]) -> list[Record]:
    """Return the records of a piece that a task shows: those of aborted transactions are left out."""
    found = []
    for header in complete_headers(log):
        if header.is_control:
            continue
        producer = (header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in records_of(log, header):
            is_hidden = producer is not None and any(
                producer[0] == number and first <= record.offset <= last for number, first, last in aborted
            )
            if begin <= record.offset < end and not is_hidden:
                found.append(Record(record.offset, record.timestamp, record.value or b"", -1, producer))
    return found
