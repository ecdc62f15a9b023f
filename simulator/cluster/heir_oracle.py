"""Judgement of a cluster that has come back: what its clients see of the cut, and what it gives out.

T17  of each partition that the cut promises all records below its end are there, and no other ones
T18  what is there has its causes there, too; groups' committed offsets among them
T20  offsets, leader epochs and producer ids are others than the lost cluster may have given out
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.inspect.restore_plan import is_tailed
from service.inspect.take_over import Restored
from service.records.builder import BatchBuilder
from service.remote.format.cut_codec import METADATA_PLACE
from service.wire.api import ApiKey, request_module
from simulator.client import EARLIEST, LATEST, Client, NoAnswer, Record
from simulator.cluster.chain_clients import coordinator_of
from simulator.cluster.client import leader_of
from simulator.cluster.cuts import CutOracle
from simulator.cluster.erasures import KeyedRecord, records_at
from simulator.cluster.heirs import HeirWorld
from simulator.cluster.oracle import INTERNAL
from simulator.cluster.replicas import Key, Replicas
from simulator.cluster.world import ClusterWorld
from simulator.model import Violation, brief

_ANSWERS_S: Final = 60.0
_AGAIN_S: Final = 0.4
_BY_NAME: Final = 9
"""newest version of OffsetFetch that names topics"""


@dataclass(frozen=True)
class Lost:
    """Knowledge of a lost cluster: its records, and the greatest numbers that it may have given out."""

    replicas: Replicas
    cuts: CutOracle
    ends: dict[Key, int]
    """by partition: the greatest end of any replica's log, and of what was acknowledged"""
    epochs: dict[Key, int]
    producers: frozenset[int]
    kept_for_ever: frozenset[Key]
    """partitions of which nothing expires or is deleted by clients"""
    cluster_id: str
    """of the first cluster"""
    metadata_end: int
    """up to where its metadata are known"""
    moment: Mapping[Key, int] | None = None
    """where partitions end, the metadata among them, in what an heir began from that is lost, too"""

    @classmethod
    def of(cls, world: ClusterWorld, cluster_id: str) -> Lost:
        """Return what the oracle of a world knows now."""
        replicas = world.oracle.replicas
        ends = dict(replicas.most)
        for (_, key), seen in replicas.seen.items():
            ends[key] = max(ends.get(key, 0), seen.end)
        kept = set()
        for topic in world.topics:
            for partition in topic.partitions:
                key = topic.topic_id, partition.index
                ends[key] = max(
                    [ends.get(key, 0), *(one + 1 for one in (*partition.acked, *partition.shaky))]
                )
                if topic.retention_ms < 0 and not partition.most_asked_start:
                    kept.add(key)
        epochs = {key: placed.leader_epoch for key, placed in replicas.placed.items()}
        cuts = world.oracle.cuts
        kept_keys, end = frozenset(kept), world.oracle.end
        return cls(replicas, cuts, ends, epochs, world.given_producers, kept_keys, cluster_id, end)

    def with_heir(self, heir: HeirWorld, restored: Restored, *, is_known: bool) -> Lost:
        """Return what is known once an heir is lost that nobody has produced to. `is_known`: the bucket tells
        of it."""
        if not is_known:
            return replace(self, moment=self.moment_of(restored))
        plans, image = restored.plan.partitions, heir.last_image
        ends = {key: max(end, plans[key].go_on if key in plans else 0) for key, end in self.ends.items()}
        led = {
            (topic.id, index): state.leader_epoch
            for topic in image.topics_by_id.values()
            for index, state in topic.partitions.items()
        }
        epochs = {**self.epochs, **led}
        return replace(self, ends=ends, epochs=epochs, moment=self.moment_of(restored))

    def moment_of(self, restored: Restored) -> Mapping[Key, int]:
        """Return where the partitions of the first cluster end that have come back."""
        cut = restored.source.cut
        if self.moment is not None and cut.cluster_id != self.cluster_id:
            return self.moment  # an heir's own cut: nothing was produced since
        ends = {(one, index): row.end for one, rows in cut.topics.items() for index, row in enumerate(rows)}
        for key in self.cuts.metadata.placed_at(cut.metadata_end):
            ends.setdefault(key, 0)
        return {**ends, METADATA_PLACE: cut.metadata_end}


class HeirOracle:
    """Asks one heir, once it has loaded all. Raises `Violation`."""

    def __init__(self, heir: HeirWorld, lost: Lost, restored: Restored, random: Random) -> None:
        self._heir = heir
        self._lost = lost
        self._restored = restored
        self._random = random
        self._moment = lost.moment_of(restored)
        """where partitions end in the cut of the first cluster"""

    async def judge(self) -> None:
        """Read everything, and then produce to each partition."""
        self._has_the_topics()
        names = {one.id: str(one.name) for one in self._heir.image().topics_by_id.values()}
        clients = [key for key in self._restored.plan.partitions if names[key[0]] not in INTERNAL]
        for key in clients:
            await self._read(key, names[key[0]])
        if self._restored.source.cut.is_exact:
            self._is_one_moment()
        await self._has_offsets(names)
        for key in clients:
            await self._goes_on(key, names[key[0]])
        await self._gives_other_producers()

    def _has_the_topics(self) -> None:
        cut, end = self._restored.source.cut, self._moment[METADATA_PLACE]
        if end > self._lost.metadata_end:
            return  # some machines lived on, and nobody looked at them
        expected = set(self._lost.cuts.metadata.placed_at(end))
        image = self._heir.image()
        found = {(one.id, index) for one in image.topics_by_id.values() for index in one.partitions}
        if expected != found:
            differing = sorted(map(str, expected ^ found))[:4]
            raise Violation(f"T18: cut {cut.cut} has come back, and its metadata differ in {differing}")

    # What is read

    async def _client(self, key: Key, name: str) -> tuple[Client, int, int, int]:
        """Return a client of the leader, the bounds of its log and its epoch, once it answers."""
        heir, why = self._heir, "nobody leads it"
        until_s = heir.loop.now_s + _ANSWERS_S
        while heir.loop.now_s < until_s:
            client = None
            try:
                teller = Client(self._random.choice(heir.machines).address)
                try:
                    host = await leader_of(heir, teller, *key)
                finally:
                    teller.close()
                if host is not None:
                    client = Client(heir.machine(host).address)
                    first, start, _ = await client.offset(name, key[1], EARLIEST)
                    last, end, epoch = await client.offset(name, key[1], LATEST)
                    if first is ErrorCode.none and last is ErrorCode.none:
                        return client, start, end, epoch
                    why = f"{first.name}, {last.name} at {host}"
            except NoAnswer as e:
                why = str(e)
            if client is not None:
                client.close()
            await asyncio.sleep(_AGAIN_S)
        raise Violation(f"{name}-{key[1]} is not served for {_ANSWERS_S:.0f} s: {why}")

    async def _read(self, key: Key, name: str) -> None:
        """T17, T20 of one partition."""
        plan, where = self._restored.plan.partitions[key], f"{name}-{key[1]}"
        client, start, end, epoch = await self._client(key, name)
        found = await self._records(client, key, where, start, end)
        client.close()
        client, start, _, _ = await self._client(key, name)  # some may have expired meanwhile
        client.close()
        if epoch <= self._lost.epochs.get(key, -1):
            raise Violation(f"T20: {where} is led in epoch {epoch}, and was in {self._lost.epochs[key]}")
        if end < plan.go_on:
            raise Violation(f"T20: {where} ends at {end}, and goes on at {plan.go_on}")
        most = max(found, default=-1)
        if most >= plan.end:
            raise Violation(f"T17: {where} shows {most}, and comes back up to {plan.end}")
        if self._lost.cuts.is_excused(key):
            return
        known, erasures = self._committed(key), self._lost.replicas.erasures
        for offset, record in found.items():
            if erasures.is_barred(key, offset, erasures.of_value(record.value, record.timestamp_ms)):
                raise Violation(f"T26: {where}: {offset}, {brief(record.value)}, was erased, and is back")
            if offset in known and known[offset].value != record.value:
                raise Violation(f"T17: {where}: {offset} is {brief(record.value)}, and was another record")
        image, begins = self._restored.source.image, self._begins(key)
        if is_tailed(image, image.topics_by_id[key[0]]) and plan.loaded_end < self._moment.get(key, 0):
            ends = self._moment[key]
            raise Violation(f"T17: {where} comes back up to {plan.loaded_end}, and the cut ends at {ends}")
        least = begins if key in self._lost.kept_for_ever else start
        ends = min(plan.loaded_end, self._moment.get(key, 0))
        for offset, one in known.items():
            if least <= offset < ends and offset not in found and not erasures.may_go(key, offset, one):
                value = brief(one.value or b"")
                raise Violation(f"T17: {where}: {offset}, {value}, is not there; it begins at {start}")

    def _begins(self, key: Key) -> int:
        rows = self._restored.source.cut.topics.get(key[0], ())
        return rows[key[1]].start if key[1] < len(rows) else 0

    def _committed(self, key: Key) -> dict[int, KeyedRecord]:
        found: dict[int, KeyedRecord] = {}
        for batch in self._lost.replicas.committed.get(key, {}).values():
            found |= records_at(batch)
        return found

    async def _records(self, client: Client, key: Key, where: str, start: int, end: int) -> dict[int, Record]:
        found: dict[int, Record] = {}
        at, until_s, why = start, self._heir.loop.now_s + _ANSWERS_S, ""
        while at < end:
            try:
                fetched = await client.fetch(*key, at, max_wait_ms=500)
            except NoAnswer as e:
                why = str(e)
            else:
                why = fetched.error.name
                if fetched.error is ErrorCode.offset_out_of_range:
                    _, begins, _ = await client.offset(where.rpartition("-")[0], key[1], EARLIEST)
                    at = max(at, begins)  # that has expired meanwhile
                found.update((one.offset, one) for one in fetched.records)
                at = max(at, fetched.next_offset)
            if self._heir.loop.now_s > until_s:
                raise Violation(f"{where}: reading stands still at {at} of {end}: {why}")
        return found

    # What follows from what

    def _is_one_moment(self) -> None:
        # Of a topic that is not saved less comes back than the cut has.
        for wrong in self._lost.cuts.torn(self._restored.source.cut.cut, dict(self._moment)):
            raise Violation(wrong)

    async def _has_offsets(self, names: dict[UUID, str]) -> None:
        """T18 of groups: what was committed before any record that is there, and nothing beyond an end."""
        cuts = self._lost.cuts
        least: dict[tuple[str, Key], int] = {}
        for (key, offset), commits in cuts.commits.items():
            if offset < self._moment.get(key, 0) and not cuts.is_excused(key):
                for one in commits:
                    place = one.group, one.key
                    least[place] = max(least.get(place, -1), one.offset)
        internal = next((one for one, name in names.items() if name == INTERNAL[0]), None)
        if internal is None or any(cuts.is_excused((internal, index)) for index in range(2)):
            return
        for group in sorted({group for group, _ in cuts.sent_commits}):
            found = await self._offsets_of(group)
            for (its, key), sent in cuts.sent_commits.items():
                if its != group or key[0] not in names:
                    continue
                offset = found.get((names[key[0]], key[1]), -1)
                where = f"group {group}, {names[key[0]]}-{key[1]}"
                if offset >= 0 and offset not in sent:
                    raise Violation(f"T18: {where}: {offset} is committed, and was never sent")
                if self._restored.source.cut.is_exact and offset < least.get((its, key), -1):
                    raise Violation(f"T18: {where}: {offset}, and {least[its, key]} was committed before")
                end = self._moment.get(key, 0)
                if self._restored.source.cut.is_exact and offset > end and not cuts.is_excused(key):
                    raise Violation(f"T18: {where}: {offset} is committed, and the cut ends at {end}")

    async def _offsets_of(self, group: str) -> dict[tuple[str, int], int]:
        m = request_module(ApiKey.OFFSET_FETCH)
        request = m.OffsetFetchRequest(groups=(m.OffsetFetchRequestGroup(group_id=group, topics=None),))
        heir, why = self._heir, ""
        until_s = heir.loop.now_s + _ANSWERS_S
        while heir.loop.now_s < until_s:
            try:
                client = await coordinator_of(heir, self._random, group)
                if client is not None:
                    answer = await client.ask(ApiKey.OFFSET_FETCH, request, version=_BY_NAME)
                    client.close()
                    found = answer.groups[0]
                    if found.error_code is ErrorCode.none:
                        return {
                            (str(one.name), int(row.partition_index)): int(row.committed_offset)
                            for one in found.topics
                            for row in one.partitions
                        }
                    why = found.error_code.name
            except NoAnswer as e:
                why = str(e)
            await asyncio.sleep(_AGAIN_S)
        raise Violation(f"the offsets of group {group} are not served for {_ANSWERS_S:.0f} s: {why}")

    # What it gives out

    async def _goes_on(self, key: Key, name: str) -> None:
        """T20: a record that is produced has an offset of its own, and a client that kept where it was in the
        lost cluster reads it next."""
        heir, where = self._heir, f"{name}-{key[1]}"
        value = heir.new_values(1)[0] + b"heir"
        builder = BatchBuilder()
        builder.add(heir.real_ms(), None, value)
        until_s, answer = heir.loop.now_s + _ANSWERS_S, None
        while answer is None or answer.error is not ErrorCode.none:
            client, _, _, _ = await self._client(key, name)
            try:
                answer = await client.produce(*key, bytes(builder.build()))
            except NoAnswer:
                pass
            finally:
                client.close()
            if heir.loop.now_s > until_s:
                said = "no answer" if answer is None else answer.error.name
                raise Violation(f"{where} takes no record for {_ANSWERS_S:.0f} s: {said}")
            if answer is None or answer.error is not ErrorCode.none:
                await asyncio.sleep(_AGAIN_S)
        kept = self._lost.ends.get(key, 0)
        if answer.base_offset < kept:
            raise Violation(f"T20: {where}: {answer.base_offset} is given out again, below {kept}")
        client, _, end, _ = await self._client(key, name)
        found = await self._records(client, key, where, kept, end)
        client.close()
        first = found[min(found)] if found else None
        if first is None or first.value != value:
            raise Violation(f"T20: {where}: who goes on at {kept} reads {first}, and not {brief(value)}")

    async def _gives_other_producers(self) -> None:
        heir = self._heir
        for machine in heir.machines:
            client = Client(machine.address)
            try:
                error, producer_id, _ = await client.init_producer_id()
            except NoAnswer:
                continue
            finally:
                client.close()
            if error is ErrorCode.none and producer_id <= max(self._lost.producers, default=-1):
                raise Violation(f"T20: the producer id {producer_id} is given out again")
