"""A fetch by an implicit session is answered with the bytes that a plain full fetch is answered with."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.errors import RequestError
from service.base.steps import at_once
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.metadata.records import RemoveTopicRecord
from service.network.request import RequestContext, Response
from service.partition.partition import Partition
from service.replication.leader import LeaderSettings, Leadership, LeaderState
from service.security.session import anonymous
from service.serving.handlers.fetch import FullFetch, handle
from service.serving.implicit_fetch import recall
from service.wire.api import parse_request_header
from service.wire.fetch import parse_fetch
from tests.support.fetch_frames import Named, fetch_frame
from tests.support.followers import ALL_THREE, EPOCH, SPREAD, Followed
from tests.support.one_of_three import INSIDE, ME, OTHER, TOPIC, OneOfThree, one_of_three, partition, topic
from tests.unit.hot.logs import START_MS, batch

ALONE, FAR = UUID(int=101), UUID(int=102)
IDS: Final = {"t": TOPIC, "u": ALONE, "far": FAR, "none": UUID(int=999)}
WORLD: Final = (
    *SPREAD,
    topic("u", ALONE), *(partition(n, ME, topic_id=ALONE) for n in range(3)),
    topic("far", FAR), partition(0, OTHER, topic_id=FAR),
)  # fmt: skip
PLACES: Final = [(name, n) for name in ("t", "u") for n in range(3)] + [("far", 0), ("none", 0), ("u", 9)]


class Rig:
    """A broker, a client with an implicit session, and what happens to both; `draw` chooses."""

    def __init__(self, node: OneOfThree) -> None:
        self.node, self.broker = node, node.broker
        self.followed = [Followed(node, n) for n in range(3)]
        self.epochs = dict.fromkeys(range(3), EPOCH)
        self.ids, self.alone = dict(IDS), ALONE
        self.asked: dict[tuple[str, int], Named] = {}
        self.version = 11
        self.how: dict[str, Any] = {"isolation": 0}
        self.acls: object = object()
        self.denied: set[str] = set()
        self.sequences: dict[tuple[str, int], int] = {}
        self.number = 0

    def here(self, draw: Random) -> tuple[str, int, Partition] | None:
        name, index = PLACES[draw.randrange(6)]
        found = self.broker.replicas.get_by(name, index)
        return None if found is None or found.is_offline else (name, index, found)

    # what happens to partitions

    def append(self, draw: Random) -> None:
        if (place := self.here(draw)) is not None and place[2].is_leader:
            place[2].append(batch(draw.randint(1, 3)), START_MS)

    def send(self, draw: Random) -> None:
        """Records of a transaction."""
        if (place := self.here(draw)) is not None and place[2].is_leader:
            sequence = self.sequences.get(place[:2], 0)
            self.sequences[place[:2]] = sequence + 1
            made = batch(1, producer_id=7, epoch=0, sequence=sequence, is_transactional=True)
            place[2].append(made, START_MS, VERIFICATION_OFF)

    def end(self, draw: Random) -> None:
        if (place := self.here(draw)) is not None and place[2].is_leader:
            place[2].append_markers([Marker(7, 0, 1, draw.random() < 0.5, 1)], START_MS)

    def replicate(self, draw: Random) -> None:
        one = self.followed[draw.randrange(3)]
        leading = one.partition.leading
        if leading is not None and leading is one.leading and not one.partition.is_offline:
            at = draw.randint(one.partition.high_watermark, one.partition.end_offset)
            for follower in (2, 3):
                if one.of(follower).end_offset <= at:
                    one.has(at, follower)

    def delete(self, draw: Random) -> None:
        place = self.here(draw)
        if place is not None and place[2].is_leader and place[2].high_watermark:
            place[2].delete_records(draw.randint(1, place[2].high_watermark))

    def retain(self, draw: Random) -> None:
        """The start of a log moves, with no partition that hears of it first."""
        if (place := self.here(draw)) is not None:
            log = place[2].log
            log.deletion.move_log_start(draw.randint(log.log_start_offset, place[2].high_watermark))

    def lead(self, draw: Random) -> None:
        """Another epoch of the same leader, or another leader."""
        index = draw.randrange(3)
        one = self.followed[index]
        if one.partition.is_offline or self.broker.replicas.get(TOPIC, index) is not one.partition:
            return
        self.epochs[index] += 1
        if draw.random() < 0.5:
            one.partition.follow(self.epochs[index])
            return
        log = one.partition.log
        log.appender.note_leader_epoch(self.epochs[index])
        shape = Leadership(self.epochs[index], 9, ALL_THREE, ALL_THREE)
        one.leading = LeaderState(
            ME, LeaderSettings(), one.brokers, log, shape, high_watermark=one.partition.high_watermark,
            min_insync_replicas=2, now_ms=START_MS,
        )  # fmt: skip
        one.partition.lead(self.epochs[index], one.leading)

    def truncate(self, draw: Random) -> None:
        """A follower drops records, those included that it has shown."""
        one = self.followed[draw.randrange(3)].partition
        if one.is_leader or one.is_offline:
            return
        end = one.log.truncation.truncate_to(draw.randint(one.start_offset, one.end_offset))
        one.set_follower_high_watermark(min(one.high_watermark, end))

    async def fail(self, draw: Random) -> None:
        if draw.random() < 0.3 and (place := self.here(draw)) is not None:
            place[2].log.fail(OSError("no more"))
            for _ in range(3):
                await asyncio.sleep(0)

    async def remove(self, draw: Random) -> None:
        """A partition is closed, or a topic is deleted; another of its name may come."""
        if draw.random() < 0.5:
            if (place := self.here(draw)) is not None:
                self.broker.replicas.take_offline(place[2].tip, "drawn")
        elif draw.random() < 0.3 and self.broker.image.topic("u") is not None:
            await self.node.tell(RemoveTopicRecord(topic_id=self.alone))
        elif self.broker.image.topic("u") is None:
            self.alone = UUID(int=200 + self.number)
            await self.node.tell(topic("u", self.alone), partition(0, ME, topic_id=self.alone))
            self.ids["u"] = draw.choice([self.alone, ALONE])

    def allow(self, draw: Random) -> None:
        self.acls = object()
        self.denied = {name for name in ("t", "u", "far") if draw.random() < 0.3}
        rig = self

        class Rules:
            @property
            def version(self) -> object:
                return rig.acls

            def allows(self, session: Any, operation: Any, kind: Any, name: str, **_: Any) -> bool:
                return name not in rig.denied

        self.broker.authorizer = None if draw.random() < 0.2 else cast("Any", Rules())

    # what the client does

    def speak(self, draw: Random) -> None:
        """It has other limits, another isolation level, or another version."""
        self.how = {
            "isolation": draw.choice([0, 1]),
            "max_bytes": draw.choice([0, 100, 300, 50 << 20]),
            "min_bytes": draw.choice([0, 1, 100]),
        }
        if draw.random() < 0.3:
            self.version = draw.choice([4, 5, 6, 7, 9, 11, 12, 13, 16, 17, 18])

    def name(self, draw: Random) -> None:
        """It names other partitions, or other offsets."""
        for place in draw.sample(PLACES, draw.randint(1, 4)):
            if draw.random() < 0.2:
                self.asked.pop(place, None)
            else:
                self.asked[place] = self._named(place, draw)

    def _named(self, place: tuple[str, int], draw: Random) -> Named:
        name, index = place
        found = self.broker.replicas.get_by(name, index)
        offset = draw.randint(0, 5)
        if found is not None:
            offset = draw.choice([found.high_watermark, found.last_stable_offset, found.start_offset, offset])
        return Named(
            index, offset, draw.choice([0, 100, 1 << 20, 1 << 20]),
            draw.choice([-1, -1, self.epochs.get(index, -1)]), draw.choice([-1, -1, -1, EPOCH]),
        )  # fmt: skip

    def read_on(self, draw: Random) -> None:
        """It has read all that it may see, as a consumer mostly has."""
        for place, one in self.asked.items():
            found = self.broker.replicas.get_by(*place)
            if found is not None:
                end = found.last_stable_offset if self.how["isolation"] else found.high_watermark
                self.asked[place] = one._replace(offset=end)

    def fetch(self, draw: Random) -> None:
        places, how = list(self.asked), draw.random()
        if how < 0.4:
            draw.shuffle(places)
        elif how < 0.8 and places:  # as librdkafka does
            turn = draw.randrange(len(places))
            places = places[turn:] + places[:turn]
        topics: list[tuple[str, list[Named]]] = []
        for place in places:
            if not topics or topics[-1][0] != place[0]:
                topics.append((place[0], []))
            topics[-1][1].append(self.asked[place])
        if draw.random() < 0.3:
            topics = topics[:1]  # as most clients have it
        if topics:
            self.compare(fetch_frame(self.version, topics, self.ids, number=self.number, **self.how))

    def compare(self, frame: bytes) -> None:
        self.number += 1
        header = parse_request_header(frame)
        answers = []
        for connection in (1, 2, 3):
            context = RequestContext(connection, "127.0.0.1", 50_000, INSIDE, anonymous("127.0.0.1", INSIDE))
            context.api_version, context.correlation_id = header.api_version, header.correlation_id
            context.api_key = header.api_key
            request: Any = parse_fetch(header.api_version, frame, header.body)
            if connection == 1:
                request = at_once(recall(self.broker, context, header, memoryview(frame)))
                assert request is not None
            if connection == 3:
                answer: Any = FullFetch(self.broker, context, request, wants_session=False).begin()
            else:
                answer = handle(self.broker, context, request)
            answers.append(sent(answer))
        assert answers[0] == answers[1] == answers[2], (header, answers)


def sent(answer: Any) -> bytes:
    """Return the bytes of an answer, which was given at once."""
    assert isinstance(answer, Response)
    return b"".join(
        part if isinstance(part, bytes | bytearray | memoryview) else cast("Any", part).read()
        for part in answer.parts
    )


ACTS: Final[list[Callable[..., Any]]] = [
    Rig.append, Rig.append, Rig.send, Rig.end, Rig.replicate, Rig.replicate, Rig.delete, Rig.retain, Rig.lead,
    Rig.truncate, Rig.fail, Rig.remove, Rig.allow, Rig.speak, Rig.name, Rig.read_on, Rig.read_on,
]  # fmt: skip


@settings(max_examples=20)
@given(acts=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 999)), min_size=5, max_size=30))
def test_the_bytes_are_those_of_a_plain_full_fetch(acts: list[tuple[Callable[..., Any], int]]) -> None:
    async def whole(folder: Path) -> None:
        async with asyncio.timeout(60), one_of_three(folder, *WORLD) as node:
            rig = Rig(node)
            rig.asked = {place: Named(place[1], 0) for place in PLACES[:6]}
            for act, seed in acts:
                draw = Random(seed)
                try:
                    done = act(rig, draw)
                    if done is not None:
                        await done
                except RequestError:
                    pass  # the log does not take it now
                rig.fetch(draw)
                rig.fetch(draw)
            sessions = node.broker.implicit_sessions
            assert not rig.asked or len(sessions) == 1
            sessions.close(1)
            while sessions.partition_count:
                await asyncio.sleep(0)
            assert len(sessions) == 0

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(whole(Path(name)))
