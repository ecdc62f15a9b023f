"""Topics of many partitions each: made, asked for, and written to round robin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property, partial
from typing import Final

from kio.schema.errors import ErrorCode

from bench.load import framed
from tests.support.batches import batch
from tests.support.processes import wait_until
from tests.support.tiers import LATEST
from tests.support.wire import RawConnection, offsets, produce_request, schema

RECORD_BYTES: Final = 100
WINDOW: Final = 100
"""Requests under way on the connection."""
CHUNK: Final = 10
"""Requests of one `send`."""
PATIENCE_S: Final = 300.0


class WideTopics:
    """`count` partitions in topics of `step` each; a rest is left out."""

    def __init__(self, count: int, step: int) -> None:
        # Names of one length: so all requests, and all responses, are of one size.
        self.names = [f"wide-{number:05}" for number in range(count // step)]
        self.step = step
        self.count = len(self.names) * step

    def create(self, bootstrap: str) -> list[float]:
        """Return the seconds that each topic took until all its partitions were led."""
        took = []
        with RawConnection(bootstrap, PATIENCE_S) as connection:
            for name in self.names:
                began = time.monotonic()
                create(connection, name, self.step)
                wait_until("leaders", partial(self._is_led, connection, name), PATIENCE_S)
                took.append(time.monotonic() - began)
        return took

    def are_led(self, bootstrap: str) -> bool:
        """Return whether the last partition of each topic is: to ask for all takes as long as a start."""
        with RawConnection(bootstrap, PATIENCE_S) as connection:
            return all(
                offsets(connection, name, self.step - 1, LATEST).error_code == ErrorCode.none
                for name in self.names
            )

    def records(self, bootstrap: str) -> int:
        """Return how many records there are in all partitions."""
        with RawConnection(bootstrap, PATIENCE_S) as connection:
            ends = [self._ends(connection, name) for name in self.names]
        assert None not in ends, "a partition is not led"
        return sum(one or 0 for one in ends)

    @cached_property
    def frames(self) -> list[bytes]:
        """A request of one record for each partition; neighbours are of different topics."""
        record = batch([bytes(RECORD_BYTES)])
        return [
            framed(produce_request(name, partition, record, acks=1))
            for partition in range(self.step)
            for name in self.names
        ]

    def produce(self, bootstrap: str, requests: int, meter: AbstractContextManager[object]) -> None:
        """Send so many requests, in whole chunks, round robin on one connection, while `meter` is open."""
        chunks = list(self.chunks(requests // CHUNK))
        before = self.records(bootstrap)
        with RawConnection(bootstrap, PATIENCE_S) as connection, meter:
            ahead = min(WINDOW // CHUNK, len(chunks))
            for chunk in chunks[:ahead]:
                connection.send(chunk)
            answer_bytes = 0
            for number in range(len(chunks)):
                if not answer_bytes:
                    answer_bytes = 4 + len(connection.receive_frame())
                    connection.receive(answer_bytes * (CHUNK - 1))
                else:
                    connection.receive(answer_bytes * CHUNK)
                if number + ahead < len(chunks):
                    connection.send(chunks[number + ahead])
        assert self.records(bootstrap) == before + len(chunks) * CHUNK, "a request was refused"

    def chunks(self, count: int) -> Iterator[bytes]:
        """Yield the bytes of `CHUNK` requests, so many times, round robin over all partitions."""
        frames, at = self.frames, 0
        for _ in range(count):
            yield b"".join(frames[(at + number) % len(frames)] for number in range(CHUNK))
            at += CHUNK

    def _is_led(self, connection: RawConnection, topic: str) -> bool:
        return self._ends(connection, topic) is not None

    def _ends(self, connection: RawConnection, topic: str) -> int | None:
        """Return the sum of the end offsets of a topic; None while some of its partitions are not led."""
        module = schema(2, 9)
        asked = tuple(
            module.ListOffsetsPartition(partition_index=one, current_leader_epoch=-1, timestamp=LATEST)
            for one in range(self.step)
        )
        request = module.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(module.ListOffsetsTopic(name=topic, partitions=asked),),
        )
        found = connection.call(request).topics[0].partitions
        is_led = all(one.error_code == ErrorCode.none for one in found)
        return sum(int(one.offset) for one in found) if is_led else None


def create(connection: RawConnection, topic: str, partitions: int) -> None:
    """CreateTopics of one topic, returned from when it is there."""
    module = schema(19, 7)
    one = module.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    limit = timedelta(seconds=PATIENCE_S)
    request = module.CreateTopicsRequest(topics=(one,), timeout=limit, validate_only=False)
    answer = connection.call(request).topics[0]
    assert answer.error_code == ErrorCode.none, (answer.error_code, answer.error_message)
