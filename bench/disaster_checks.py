"""Records that came back in `bench.disasters`, and whether they are of one moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import confluent_kafka

from bench.disaster_clients import CHAINS, is_answered
from service.groups.records import OffsetKey, decode_key, decode_offset_value
from tests.support.processes import wait_until


class Record(NamedTuple):
    """Record of a partition."""

    offset: int
    value: bytes
    key: bytes = b""


class Content(NamedTuple):
    """Records of a topic as they are found, by partition."""

    records: list[list[Record]]

    def values(self) -> Iterable[bytes]:
        return (one.value for part in self.records for one in part)

    def below(self, ends: Sequence[int]) -> Content:
        """Return what lies below the end of its partition."""
        pairs = zip(self.records, ends, strict=True)
        return Content([[one for one in part if one.offset < end] for part, end in pairs])


def content(bootstrap: str, topic: str, partitions: int) -> Content:
    """Read all of a topic, up to the ends at the start of the call."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    found: list[list[Record]] = [[] for _ in range(partitions)]
    ended: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                one = Record(message.offset(), message.value() or b"", message.key() or b"")
                found[message.partition()].append(one)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif not error.retriable():
                raise confluent_kafka.KafkaException(error)
        return len(ended) == partitions

    try:
        begin = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, one, begin) for one in range(partitions)])
        wait_until(f"{topic} to be read to its end", is_read, 300, 0)
    finally:
        consumer.close()
    return Content(found)


def committed_in(offsets: Content, group: str) -> list[tuple[int, int]]:
    """Return the partitions of `CHAINS` with the offsets that a group has committed, as the records of
    `__consumer_offsets` tell it."""
    found: dict[int, int] = {}
    for part in offsets.records:
        for one in part:
            key = decode_key(one.key) if one.key else None
            if not isinstance(key, OffsetKey) or (key.group, key.topic) != (group, CHAINS):
                continue
            if one.value:
                found[key.partition] = decode_offset_value(one.value).offset
            else:
                found.pop(key.partition, None)
    return sorted(found.items())


def torn(chains: Content, echoes: Content, clients: int, committed: Iterable[tuple[int, int]]) -> list[str]:
    """Return where what was found is not of one moment: a chain with a hole, an echo without its cause, a
    committed offset whose records have no echo or do not exist. What stays has the same line later."""
    found: list[str] = []
    numbers: list[set[int]] = [set() for _ in range(clients)]
    for value in chains.values():
        client, _, count = value.partition(b":")
        numbers[int(client)].add(int(count))
    for chain, known in enumerate(numbers):
        missing = sorted(set(range(max(known, default=0))) - known)
        found += [f"chain {chain} lacks {one}, and has what follows from it" for one in missing]
    causes = {(part, one.offset): one.value for part, records in enumerate(chains.records) for one in records}
    answered: list[set[int]] = [set() for _ in chains.records]
    for echo in echoes.values():
        place, _, cause = echo.partition(b"=")
        number, offset = _place(place)
        if causes.get((number, offset)) != cause:
            found.append(f"echo of {place.decode()} is there, and its cause is not")
        else:
            answered[number].add(offset)
    for partition, end in committed:
        if end <= 0:
            continue
        records = chains.records[partition]
        found += [
            f"{CHAINS}-{partition} is committed beyond {one.offset}, which has no echo"
            for one in records
            if one.offset < end and is_answered(one.value) and one.offset not in answered[partition]
        ]
        if end > (records[-1].offset + 1 if records else 0):
            found.append(f"{CHAINS}-{partition} is committed to {end}, beyond its last record")
    return found


def _place(words: bytes) -> tuple[int, int]:
    partition, _, offset = words.partition(b"@")
    return int(partition), int(offset)
