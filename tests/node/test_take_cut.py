"""Three brokers in one process, asked for cuts by a keeper that the test plays (TakeCut)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.partition.partition import Partition
from service.records.batch import iter_headers
from service.remote.format.coverage import Span, cover
from service.remote.format.cut_codec import Cut, CutRef, Cuts, PartitionCut, TailRef, encode_cut, encode_cuts
from service.remote.format.keys import CutKey, MetadataKey, cut_key, metadata_key
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.tail_object import decode_footer
from service.tiering.cuts.round import CutStep
from service.wire.api import ApiKey, request_module
from service.wire.cuts import CutEnd, TakeCutRequest, TakeCutResponse
from tests.node.conftest import Talk
from tests.node.requests import DAY, values
from tests.node.test_transactions_between_nodes import Three
from tests.support.processes import wait_until

NONE: Final = ErrorCode.none
HOLD_MS: Final = 9_000
BROKERS: Final = (1, 2, 3)
_METADATA: Final = MetadataRef(metadata_key(MetadataKey(5, 1, UUID(int=5))), 5, 1, 10, 20)
Answers = dict[int, TakeCutResponse]


class Keeper:
    """What the keeper of the prefix would ask, and write."""

    def __init__(self, three: Three, bucket: Path) -> None:
        self.three, self.bucket = three, bucket
        self.cut = 1
        self.newest_id: UUID | None = None
        self.named: list[TailRef] = []
        self.ids = (UUID(int=n) for n in count(100))
        self.attempt = next(self.ids)
        self.clients = {one: three.nodes[one].client() for one in BROKERS}

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def ask(self, node_id: int, step: CutStep, **fields: Any) -> TakeCutResponse:
        plane = self.three.nodes[1].node.parts.plane
        epoch = -1 if plane is None else plane.epoch
        known: dict[str, Any] = {
            "broker_id": 1, "broker_epoch": epoch, "attempt_id": self.attempt, "newest_id": self.newest_id,
            "cut": self.cut, "step": int(step), "hold_ms": HOLD_MS,
        }  # fmt: skip
        request = TakeCutRequest(**{**known, **fields})
        answer: TakeCutResponse = self.clients[node_id].request(ApiKey.TAKE_CUT, request)
        return answer

    def all(self, step: CutStep, brokers: tuple[int, ...] = BROKERS, **fields: Any) -> Answers:
        answers = {one: self.ask(one, step, **fields) for one in brokers}
        assert {one.error_code for one in answers.values()} == {NONE}, answers
        return answers

    def begin(self, brokers: tuple[int, ...] = BROKERS, **fields: Any) -> None:
        """Begin an attempt, once the brokers' coldness and leaderships let them."""

        def begun() -> bool:
            self.attempt = next(self.ids)
            answers = [self.ask(one, CutStep.BEGIN, **fields) for one in brokers]
            if all(one.error_code is NONE for one in answers):
                return True
            for one in brokers:
                self.ask(one, CutStep.VOID, **fields)
            return False

        wait_until("all brokers to begin", begun)

    def take(self, brokers: tuple[int, ...] = BROKERS) -> dict[tuple[UUID, int], CutEnd]:
        return rows_of(self.all(CutStep.TAKE, brokers))

    def save(self, rows: dict[tuple[UUID, int], CutEnd], brokers: tuple[int, ...] = BROKERS) -> list[TailRef]:
        """Have the tails saved; name them in a cut, its document and `CUT`."""
        answers = self.all(CutStep.SAVE, brokers)
        rows.update(rows_of(answers))
        tails = [
            TailRef(one.key, one.size, one.footer_position, one.footer_crc)
            for answer in answers.values() for one in answer.tails
        ]  # fmt: skip
        self.named += tails
        topics: dict[UUID, list[PartitionCut]] = {}
        for (topic_id, _), one in sorted(rows.items()):
            row = PartitionCut(
                one.leader_epoch, one.start, one.end, one.stable, one.saved, one.saved_high, one.last_epoch,
                one.version, one.waits,
            )  # fmt: skip
            topics.setdefault(topic_id, []).append(row)
        cut = Cut(
            self.cluster_id, self.cut, 1, True, _METADATA, 5, 1, tuple(self.named),
            {topic_id: tuple(found) for topic_id, found in topics.items()},
        )  # fmt: skip
        data, key = encode_cut(cut), cut_key(CutKey(self.cut, self.attempt))
        (self.bucket / "cut").mkdir(exist_ok=True)
        (self.bucket / key).write_bytes(data)
        ref = CutRef(self.cut, key, len(data), crc32c(data), 1, True, True)
        (self.bucket / "CUT").write_bytes(encode_cuts(Cuts(self.cluster_id, (ref,))))
        self.newest_id, self.cut = self.attempt, self.cut + 1
        return tails

    @property
    def cluster_id(self) -> str:
        return self.three.nodes[1].node.parts.identity.cluster_id

    def values(self, topic_id: UUID, partition: int, end: int) -> list[bytes | None]:
        """Values of a partition's records up to `end`, as the named tails have them."""
        spans: list[Span] = []
        for ref in self.named:
            data = (self.bucket / ref.key).read_bytes()
            footer = decode_footer(data, len(data))
            spans += [
                Span(ref.key, footer.level, one)
                for one in footer.sections
                if (one.topic_id, one.partition) == (topic_id, partition)
            ]
        covered = cover(spans, 0, end)
        assert covered.reaches == end
        found: list[bytes | None] = []
        for piece in covered.pieces:
            section = piece.span.section
            data = (self.bucket / piece.span.tail).read_bytes()[section.position :][: section.length]
            for header in iter_headers(data):
                if piece.first <= header.base_offset < piece.end:
                    found += values(data[header.position : header.end])
        return found


def rows_of(answers: Answers) -> dict[tuple[UUID, int], CutEnd]:
    return {
        (topic.topic_id or UUID(int=0), one.partition): one
        for answer in answers.values() for topic in answer.ends for one in topic.partitions
    }  # fmt: skip


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    three = Three(tmp_path, **{"firn.cut.interval.ms": "-1"})
    try:
        found = Keeper(three, tmp_path / "bucket")
        yield found
        found.close()
    finally:
        three.close()


def produce(three: Three, partition: int, value: bytes, leader: int | None = None) -> Any:
    with three.nodes[leader or partition + 1].client() as client:
        talk = Talk(client)
        return talk.produce_in_the_end(talk.topic_id("t"), [value], DAY, partition)


def shown(three: Three, node_id: int, partition: int) -> list[bytes | None]:
    with three.nodes[node_id].client() as client:
        talk = Talk(client)
        return values(talk.fetch(talk.topic_id("t"), 0, partition).records)


def shows(three: Three, partition: int, expected: list[bytes | None]) -> bool:
    return shown(three, partition + 1, partition) == expected


def is_replicated(partition: Partition, end: int) -> bool:
    """Whether all of it is committed, seen or not."""
    leading = partition.leading
    return partition.end_offset == end and leading is not None and leading.high_watermark == end


def led_by(three: Three, partition: int) -> Partition:
    for node in three.nodes.values():
        broker = node.node.parts.broker
        assert broker is not None
        found: TopicIdPartition = next(one.tip for one in broker.replicas if one.tip.topic == "t")
        one = broker.replicas.get(found.topic_id, partition)
        if one is not None and one.is_leader:
            return one
    raise AssertionError("no leader")


def test_cuts_of_three_brokers_are_one_moment_and_outlive_a_leader(keeper: Keeper) -> None:
    """Records that are produced behind closed gates are seen after them, and are not in the cut."""
    topic_id = keeper.three.talk.topic_id("t")
    cut_behind_gates(keeper, topic_id)
    cut_without_gates(keeper, topic_id)
    deletion_behind_gates(keeper, topic_id)
    leader_that_ends(keeper, topic_id)


def cut_behind_gates(keeper: Keeper, topic_id: UUID) -> None:
    """Nobody sees what is produced now, and no producer is told of it; the metadata stand still as well."""
    three = keeper.three
    for partition in range(3):
        assert produce(three, partition, b"before").error_code == NONE
    keeper.begin()
    answers: list[Any] = []
    later = [
        threading.Thread(target=lambda n=n: answers.append(produce(three, n, b"after"))) for n in range(3)
    ]
    for one in later:
        one.start()
    for partition in range(3):
        one_led = led_by(three, partition)
        wait_until("its append", partial(is_replicated, one_led, 2))
        assert one_led.high_watermark == 1
        assert shown(three, partition + 1, partition) == [b"before"]
    images = [node.node.parts.metadata for node in three.nodes.values()]
    before = [one.image.offset for one in images if one is not None]
    creating = threading.Thread(target=lambda: three.create("meanwhile", [(1,)]))
    creating.start()
    quorum = images[0]
    assert quorum is not None
    wait_until("it to be committed", lambda: quorum.quorum.machine.high_watermark > before[0] + 1)
    assert [one.image.offset for one in images if one is not None] == before
    assert answers == []
    rows = keeper.take()
    for one in (*later, creating):
        one.join()
    assert [one.error_code for one in answers] == [NONE] * 3
    assert [rows[topic_id, n].end for n in range(3)] == [1, 1, 1]
    keeper.save(rows)
    for partition in range(3):
        wait_until("it to be seen", partial(shows, three, partition, [b"before", b"after"]))
        assert keeper.values(topic_id, partition, 1) == [b"before"]


def cut_without_gates(keeper: Keeper, topic_id: UUID) -> None:
    """A loose one, whose attempt nobody has begun; and gates that nobody takes."""
    three = keeper.three
    keeper.attempt = next(keeper.ids)
    rows = rows_of(keeper.all(CutStep.TAKE, hold_ms=0))
    assert [rows[topic_id, n].end for n in range(3)] == [2, 2, 2]
    assert keeper.ask(2, CutStep.SAVE, hold_ms=0, broker_id=3).error_code is ErrorCode.invalid_request
    keeper.begin(hold_ms=1)
    brokers = [node.node.parts.broker for node in three.nodes.values()]
    wait_until("gates to open", lambda: all(one is not None and one.replicas.gate.is_open for one in brokers))
    assert keeper.ask(1, CutStep.TAKE, hold_ms=1).error_code is ErrorCode.request_timed_out
    assert produce(three, 0, b"on").error_code == NONE


def deletion_behind_gates(keeper: Keeper, topic_id: UUID) -> None:
    """A client deletes records because of what another broker showed after its ends were noted."""
    keeper.begin()
    one = led_by(keeper.three, 0)
    with keeper.three.nodes[1].client() as client:
        deleting = threading.Thread(target=lambda: delete_records(Talk(client), 1))
        deleting.start()
        wait_until("the deletion", lambda: bool(one.gate._opened) or one.start_offset == 1)
        assert keeper.take()[topic_id, 0].start == 0
        deleting.join()
    assert one.start_offset == 1


def delete_records(talk: Talk, offset: int) -> None:
    module = request_module(ApiKey.DELETE_RECORDS)
    topic = module.DeleteRecordsTopic(
        name="t", partitions=(module.DeleteRecordsPartition(partition_index=0, offset=offset),)
    )
    answer = talk(
        ApiKey.DELETE_RECORDS, "DeleteRecordsRequest", topics=(topic,), timeout=timedelta(seconds=20)
    )
    assert answer.topics[0].partitions[0].error_code is NONE


def leader_that_ends(keeper: Keeper, topic_id: UUID) -> None:
    """A broker ends between two steps; the attempt is void, and the next leader goes on from the tails."""
    three, two = keeper.three, (1, 2)
    keeper.begin(hold_ms=500)
    three.nodes[3].stop()
    for one in two:
        assert keeper.ask(one, CutStep.VOID, hold_ms=500).error_code is NONE
    wait_until("another leader", lambda: led_by(three, 2).leader_epoch > 0)
    number = next(one for one in two if replica(three, one, topic_id) is led_by(three, 2))
    assert produce(three, 2, b"next", number).error_code == NONE
    keeper.begin(two)
    rows = keeper.take(two)
    tails = keeper.save(rows, two)
    assert rows[topic_id, 2].saved == rows[topic_id, 2].end == 3
    assert keeper.values(topic_id, 2, 3) == [b"before", b"after", b"next"]
    firsts = [
        section.first_offset
        for ref in tails
        for data in [(keeper.bucket / ref.key).read_bytes()]
        for section in decode_footer(data, len(data)).sections
        if (section.topic_id, section.partition) == (topic_id, 2)
    ]
    assert firsts == [1], "from where the cut says that tails end"


def replica(three: Three, node_id: int, topic_id: UUID) -> Partition | None:
    broker = three.nodes[node_id].node.parts.broker
    assert broker is not None
    return broker.replicas.get(topic_id, 2)
