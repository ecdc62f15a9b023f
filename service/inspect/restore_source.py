"""Reads from a bucket all that a restore is planned from: `CUT`, one cut, its metadata, tails and chains.

Reads alone. A cut whose objects do not verify is passed over for the one before it, and named. Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from crc32c import crc32c

from service.base.errors import ConfigError, CorruptionError, UnknownVersion
from service.base.times import time_text
from service.inspect.restore_archive import SeenChain, each, places_of, seen_chain, stamped_ms
from service.inspect.restore_plan import OFFSET_GAP, FoundChain, PlanFacts, RestorePlan, restore_plan
from service.metadata.batches import decode_batches
from service.metadata.delta import MetadataDelta
from service.metadata.frames import UnknownRecord
from service.metadata.image import MetadataImage
from service.metadata.records import MetadataRecord, RemoveUserScramCredentialRecord
from service.metadata.snapshot_codec import decode_snapshot
from service.remote.catalog import Erasure
from service.remote.format.ancestors import Ancestor
from service.remote.format.coverage import Coverage
from service.remote.format.cut_codec import METADATA_TOPIC_ID, Cut, CutRef, Cuts, Place
from service.remote.format.keys import CUT_NAME, CUT_PREFIX
from service.remote.format.manifest_codec import ClusterFile
from service.remote.reading.erasure_orders import read_orders
from service.remote.reading.object_reader import (
    open_cluster_file,
    open_metadata,
    open_topics,
)
from service.remote.reading.tail_records import read_pieces
from service.remote.reading.tails import (
    OpenCut,
    TailIndex,
    index_tails,
    is_of_a_given_up_past,
    listed_cuts,
    open_cuts,
    open_named_cut,
    owners_of,
)
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, naming, raise_of_the_store
from service.remote.stores.store import ObjectStore

_IDS: Final = UUID("6f1c2a86-5a0b-5f0e-9a53-4f2a5c0b7d11")
"""Namespace of incarnations of restores"""
_MOST_SINCE: Final = 1 << 31
"""Most offsets that a partition gets between the newest cut and an order to erase keys"""


class CutChoice(NamedTuple):
    """Choice of a cut: the newest complete and exact one, unless one of the first three says more.

    `number`: that one alone; `at_ms`: the newest not after that time, by the keeper's clock;
    `metadata_offset`: the newest whose metadata ends at or below it. `allows_loose`: it may be loose.
    """

    number: int | None = None
    at_ms: int | None = None
    metadata_offset: int | None = None
    allows_loose: bool = False


class Highest(NamedTuple):
    """The highest that anything but the cut tells: leader epochs and ends by partition, the first producer id
    that was not given out, the life; the newest time, and names of topics by id. `order_ends` are those of
    orders to erase keys, whose cluster has given out the offsets below them."""

    epochs: dict[Place, int]
    ends: dict[Place, int]
    next_producer_id: int
    life: int
    newest_ms: int
    topics: dict[UUID, str]
    order_ends: Mapping[Place, int] = MappingProxyType({})

    @property
    def told_ends(self) -> dict[Place, int]:
        """Ends that documents of cuts and orders tell. What an order has more than `_MOST_SINCE` beyond a cut
        nobody has."""
        found = dict(self.ends)
        for place, end in self.order_ends.items():
            known = self.ends.get(place, 0)
            found[place] = max(known, min(end, known + _MOST_SINCE))
        return found


class RestoreSource(NamedTuple):
    """Documents that were read of a source, and chains as the plan was made of them. `cuts` is None where
    `CUT` cannot be read. `orders` to erase keys are carried out by the heir."""

    cluster: ClusterFile
    cuts: Cuts | None
    ref: CutRef
    cut: Cut
    image: MetadataImage
    tails: TailIndex
    highest: Highest
    passed_over: tuple[str, ...] = ()
    chains: Mapping[Place, SeenChain] = MappingProxyType({})
    orders: tuple[Erasure, ...] = ()

    @property
    def source_id(self) -> str:
        """Id of the lost cluster: that of the prefix, unless its heir has claimed the prefix already."""
        file = self.cluster
        return file.ancestors[0].cluster_id if is_unfinished_claim(file) else file.cluster_id

    @property
    def ancestors(self) -> tuple[Ancestor, ...]:
        """Clusters that the lost cluster itself was restored from, newest first."""
        file = self.cluster
        return file.ancestors[1:] if is_unfinished_claim(file) else file.ancestors

    @property
    def restores_since(self) -> int:
        """Number of clusters that were restored since the cut and lost, too: each may have gone on."""
        ids = [self.source_id, *(one.cluster_id for one in self.ancestors)]
        return ids.index(self.cut.cluster_id) if self.cut.cluster_id in ids else len(ids)

    @property
    def later_places(self) -> tuple[Place, ...]:
        """Partitions that topics of the cut got after it, as far as anything tells."""
        image, known = self.image, {*self.highest.told_ends, *self.highest.epochs}
        return tuple(
            sorted(one for one in known if one[0] in image.topics_by_id and image.partition(*one) is None)
        )

    @property
    def later_cuts(self) -> tuple[int, ...]:
        """Numbers of complete cuts that are kept and newer than this one: a take-over drops them."""
        kept = () if self.cuts is None else self.cuts.kept
        return tuple(one.cut for one in kept if one.cut > self.ref.cut and one.is_complete)

    @property
    def owners(self) -> frozenset[str]:
        """Ids of the cluster and of those that wrote here before it."""
        return owners_of(self.cluster)


def claim_id(cluster_id: str, source_id: str, cut: int) -> UUID:
    """Return the incarnation under which a restore writes: it follows from what is restored, so that a later
    run knows the claim of one that was cut off."""
    return uuid5(_IDS, f"{cluster_id} {source_id} {cut}")


def is_unfinished_claim(file: ClusterFile) -> bool:
    """Return whether a restore has taken the prefix over, and no node of the heir has written since."""
    newest = next(iter(file.ancestors), None)
    if newest is None or file.stamp is None:
        return False
    claim = claim_id(file.cluster_id, newest.cluster_id, newest.until_cut)
    return file.stamp.writer.incarnation == claim


def plan_of(
    source: RestoreSource,
    chains: Mapping[Place, FoundChain],
    *,
    gap: int,
    wanted: Callable[[str], bool] | None = None,
) -> RestorePlan:
    """Return the plan of what was read."""

    def pieces(place: Place, first: int, end: int, last_epoch: int) -> Coverage:
        return source.tails.pieces(place, first, end, last_epoch=last_epoch)

    newest_ms = max(
        [source.highest.newest_ms, source.cut.at_ms, *(one.written_ms for one in chains.values())]
    )
    known = {*source.image.topics_by_id, *source.image.tombstones}
    facts = PlanFacts(
        source.source_id,
        source.ref,
        source.cut,
        source.image,
        chains,
        source.highest.epochs,
        source.highest.told_ends,
        newest_ms,
        source.passed_over,
        source.restores_since,
        len(source.ancestors),
        tuple(sorted(name for one, name in source.highest.topics.items() if one not in known)),
        tuple(
            f"{source.image.topics_by_id[topic_id].name}-{number}" for topic_id, number in source.later_places
        ),
        source.later_cuts,
    )
    plan = restore_plan(facts, pieces, gap=gap, wanted=wanted)
    return plan._replace(notes=(*_claim_notes(source), *plan.notes))


def _claim_notes(source: RestoreSource) -> Iterator[str]:
    """Yield which restore holds the prefix: a take-over goes on with its cut, whatever can be planned."""
    if is_unfinished_claim(source.cluster):
        until = source.cluster.ancestors[0].until_cut
        yield (
            f"the prefix is that of cluster {source.cluster.cluster_id}, which is restored from cut {until} "
            f"and has not started yet: a take-over goes on with that cut"
        )


def read_source(
    store: ObjectStore,
    choice: CutChoice,
    pool: Executor,
    *,
    gap: int = OFFSET_GAP,
    wanted: Callable[[str], bool] | None = None,
) -> tuple[RestoreSource, RestorePlan]:
    """Return what was read for this choice, and the plan of its restore.

    Raises `ConfigError` where no cut can be had, with the reasons; `CorruptionError` where `cluster.json`
    does not say whose prefix it is; what a store raises that does not answer.
    """
    return _Reading(store, pool, gap, wanted).run(choice)


class _Reading:
    """One search for a cut that verifies."""

    def __init__(
        self, store: ObjectStore, pool: Executor, gap: int, wanted: Callable[[str], bool] | None
    ) -> None:
        self._store = store
        self._pool = pool
        self._gap = gap
        self._wanted = wanted
        self._passed: list[str] = []
        self._cluster = self._read_cluster()
        self._owners = owners_of(self._cluster)
        self._orders: tuple[Erasure, ...] = ()

    def _read_cluster(self) -> ClusterFile:
        try:
            return open_cluster_file(self._store)
        except ObjectNotFound as e:
            raise ConfigError(f"there is no archive of a cluster here: {e}") from e
        except CorruptionError as e:
            raise CorruptionError(f"{e}: it does not say whose prefix this is (firn repair)") from e

    def run(self, choice: CutChoice) -> tuple[RestoreSource, RestorePlan]:
        cuts = self._read_cuts()
        refs = list(reversed(self._kept(cuts))) if cuts is not None else [one.ref for one in self._listed()]
        wanted = [ref for ref in refs if is_chosen(choice, ref, is_known=cuts is not None)]
        if not wanted:
            raise ConfigError(self._why_none(choice, refs, is_known=cuts is not None))
        self._orders, ends = _orders_of(self._store, cuts, self._owners)
        highest = self._highest(cuts)._replace(order_ends=ends)
        for ref in wanted:
            try:
                found = self._try(ref, cuts, highest, choice)
            except UNREADABLE as e:
                raise_of_the_store(e)
                self._passed.append(f"cut {ref.cut} is passed over: {e}")
                continue
            if found is not None:
                return found
        beyond = (
            [] if choice.metadata_offset is None else ["the metadata of the others ends beyond the offset"]
        )
        raise ConfigError("no cut can be restored", *self._passed, *beyond)

    def _try(
        self, ref: CutRef, cuts: Cuts | None, highest: Highest, choice: CutChoice
    ) -> tuple[RestoreSource, RestorePlan] | None:
        cut = open_named_cut(self._store, ref, self._owners)
        if choice.metadata_offset is not None and cut.metadata_end > choice.metadata_offset:
            return None
        index = index_tails(self._store, cut.tails, owners=self._owners, pool=self._pool)
        image = image_at(self._store, cut, index)
        chains = dict(each(self._pool, partial(self._chain, image, cut), places_of(image)))
        passed = tuple(self._passed)
        read = RestoreSource(
            self._cluster, cuts, ref, cut, image, index, highest, passed, chains, self._orders
        )
        found = {place: one.found for place, one in chains.items()}
        plan = plan_of(read, found, gap=self._gap, wanted=self._wanted)
        if plan.incomplete:
            names = [
                f"{image.topics_by_id[one.topic_id].name}-{one.partition} from {one.loaded_end} to {one.end}"
                for one in plan.incomplete[:5]
            ]
            raise CorruptionError(
                f"{len(plan.incomplete)} partitions lack records that it promises: {', '.join(names)}"
            )
        return read, plan

    def _read_cuts(self) -> Cuts | None:
        try:
            cuts = open_cuts(self._store, self._owners)
        except ObjectNotFound as e:
            if next(iter(self._store.list(CUT_PREFIX)), None) is not None:
                self._passed.append(f"{e}: it is gone, the documents of cuts are searched instead")
                return None
            raise ConfigError(
                f"{e}: this cluster has written no cut, so there is no moment to restore; its topics and "
                f"what was archived come back by firn.remote.recover (docs/operations.md)"
            ) from e
        except UnknownVersion:
            raise
        except CorruptionError as e:
            self._passed.append(f"{CUT_NAME} cannot be read, the documents of cuts are searched instead: {e}")
            return None
        return cuts

    def _kept(self, cuts: Cuts) -> list[CutRef]:
        """Return the cuts that are kept. Those that this cluster inherited may be complete together with
        segments that reach beyond them, which is looked at when they are read."""
        until = self._cluster.ancestors[0].until_cut if self._cluster.ancestors else 0
        return [ref._replace(is_complete=True) if ref.cut <= until else ref for ref in cuts.kept]

    def _listed(self) -> Iterator[OpenCut]:
        """Yield the cuts whose documents can be read, the newest first, where `CUT` cannot be."""
        for found in listed_cuts(self._store, self._owners, self._pass_over):
            if not is_of_a_given_up_past(self._cluster, found.cut):
                yield found

    def _pass_over(self, key: str, error: Exception) -> None:
        if str(error) not in self._passed:
            self._passed.append(str(error))

    def _why_none(self, choice: CutChoice, refs: Sequence[CutRef], *, is_known: bool) -> str:
        complete = [ref for ref in refs if ref.is_complete or not is_known]
        if choice.number is not None:
            named = next((ref for ref in refs if ref.cut == choice.number), None)
            if named is None:
                kept = f"{refs[-1].cut} to {refs[0].cut}" if refs else "none"
                return f"--cut {choice.number}: there is no such cut; kept are {kept}"
            if named not in complete:
                return f"--cut {choice.number}: that cut is not complete, records below its ends are missing"
            return f"--cut {choice.number}: that cut is loose, not of one moment; --allow-loose takes it"
        possible = [ref for ref in complete if ref.is_exact or choice.allows_loose]
        if possible:  # --at alone excludes these: metadata is looked at once a cut is read
            oldest, kind = possible[-1], "" if choice.allows_loose else "exact "
            return f"--at: the oldest {kind}cut that is kept is {oldest.cut}, of {time_text(oldest.at_ms)}"
        if complete:
            return "all complete cuts are loose, not of one moment; --allow-loose takes them"
        return "no cut is complete, so none can be restored"

    def _highest(self, cuts: Cuts | None) -> Highest:
        """Read what may tell more than the cut: the newest copy of the metadata, the documents' times."""
        epochs: dict[Place, int] = {}
        names: dict[UUID, str] = {}
        next_producer_id = life = 0
        times = [stamped_ms(self._cluster.stamp), stamped_ms(cuts.stamp) if cuts is not None else 0]
        if self._cluster.metadata is not None:
            life = self._cluster.metadata.life
        try:
            topics = open_topics(self._store)
            times.append(stamped_ms(topics.stamp))
            names = {row.topic_id: row.name for row in topics.topics}
            # An heir's own is of the life that is about to begin.
            if not is_unfinished_claim(self._cluster) or topics.cluster_id != self._cluster.cluster_id:
                life = max(life, topics.life)
        except UNREADABLE as e:
            raise_of_the_store(e)
        try:
            found = open_metadata(self._store)
            if found is not None:
                ref, data = found
                image = decode_snapshot([data], end_offset=ref.end_offset, epoch=ref.epoch)
                next_producer_id, life = image.next_producer_id, max(life, image.life)
                times.append(max(image.timestamp_ms, 0))
                names.update((topic.id, topic.name) for topic in image.topics_by_id.values())
                epochs = {
                    (topic.id, number): partition.leader_epoch
                    for topic in image.topics_by_id.values()
                    for number, partition in topic.partitions.items()
                }
        except UNREADABLE as e:
            raise_of_the_store(e)
            self._passed.append(f"the newest copy of the metadata cannot be read, and tells no epochs: {e}")
        return Highest(epochs, self._newest_ends(cuts), next_producer_id, life, max(times), names)

    def _newest_ends(self, cuts: Cuts | None) -> dict[Place, int]:
        """Return the greatest ends that the newest documents of cuts tell, named by `CUT` or not."""
        found: dict[Place, int] = {}
        for cut in self._newest_cuts(cuts):
            for topic_id, rows in cut.topics.items():
                for number, row in enumerate(rows):
                    place = topic_id, number
                    found[place] = max(found.get(place, 0), row.end)
        return found

    def _newest_cuts(self, cuts: Cuts | None) -> Iterator[Cut]:
        """Yield the cut of the greatest number, which may be of a past that was given up for an earlier cut,
        and the newest of the past that the prefix has now."""
        all_of_them = listed_cuts(self._store, self._owners, lambda key, error: None)
        greatest = next(all_of_them, None)
        if greatest is not None:
            yield greatest.cut
        try:
            if cuts is None:
                yield from (found.cut for found in islice(self._listed(), 1))
            elif greatest is None or greatest.ref.key != cuts.newest.key:
                yield open_named_cut(self._store, cuts.newest, self._owners)
        except UNREADABLE as e:
            raise_of_the_store(e)  # that it is damaged is said where it is tried

    def _chain(self, image: MetadataImage, cut: Cut, place: Place) -> tuple[Place, SeenChain]:
        return place, seen_chain(self._store, self._owners, image, cut, place)


def _orders_of(
    store: ObjectStore, cuts: Cuts | None, owners: Collection[str]
) -> tuple[tuple[Erasure, ...], dict[Place, int]]:
    """Return the orders to erase keys, and the greatest end that one of them has in each partition."""
    orders: list[Erasure] = []
    ends: dict[Place, int] = {}
    for erasure, order in read_orders(store, cuts, owners):
        orders.append(erasure)
        for topic in order.topics:
            for number, end in enumerate(topic.ends):
                place = topic.topic_id, number
                ends[place] = max(end, ends.get(place, 0))
    return tuple(orders), ends


def with_newest_orders(store: ObjectStore, source: RestoreSource, heir: str) -> RestoreSource:
    """Return a source with the orders to erase keys, and the kept cuts, that `CUT` lists now that it is the
    heir's to write: the source may have taken an order since it was read, or given cuts up.

    Raises as `read_orders`.
    """
    owners = {*source.owners, heir}
    try:
        cuts: Cuts | None = open_cuts(store, owners)
    except UNREADABLE as e:
        raise_of_the_store(e)
        cuts = None
    orders, ends = _orders_of(store, cuts, owners)
    return source._replace(
        cuts=cuts or source.cuts, orders=orders, highest=source.highest._replace(order_ends=ends)
    )


def is_chosen(choice: CutChoice, ref: CutRef, *, is_known: bool) -> bool:
    """Return whether a cut is wanted; `is_known`: `CUT` says whether it is complete."""
    if not ref.is_complete and is_known:
        return False
    if not ref.is_exact and not choice.allows_loose:
        return False
    if choice.number is not None:
        return ref.cut == choice.number
    return choice.at_ms is None or ref.at_ms <= choice.at_ms


def image_at(store: ObjectStore, cut: Cut, index: TailIndex) -> MetadataImage:
    """Return the metadata at the cut: its snapshot, and the records behind it up to the cut's end.

    Raises `CorruptionError` or `ObjectNotFound` where some of it is missing or damaged.
    """
    ref = cut.metadata
    with naming(ref.key):
        data = store.get(ref.key, max_size=ref.size)
        if len(data) != ref.size or crc32c(data) != ref.crc32c:
            raise CorruptionError(f"{len(data)} bytes with another checksum than the cut's")
        image = decode_snapshot([data], end_offset=ref.end_offset, epoch=ref.epoch)
    if ref.end_offset == cut.metadata_end:
        return image
    pieces = index.pieces((METADATA_TOPIC_ID, 0), ref.end_offset, cut.metadata_end)
    if pieces.reaches < cut.metadata_end:
        raise CorruptionError(
            f"the metadata's records from {pieces.reaches} to {cut.metadata_end} are in no tail"
        )
    delta = MetadataDelta(image)
    timestamp_ms = image.timestamp_ms
    for run in read_pieces(store, pieces.pieces):
        for batch in decode_batches(bytes(run.data)):
            timestamp_ms = max(timestamp_ms, batch.timestamp_ms)
            for frame in batch.frames:
                _replay(delta, frame.record)
    return delta.build(cut.metadata_end - 1, cut.metadata_epoch, timestamp_ms)


def _replay(delta: MetadataDelta, record: MetadataRecord | UnknownRecord) -> None:
    try:
        delta.replay(record)
    except CorruptionError:
        # Copies of the metadata have no credentials, unless the operator wants them there.
        if not isinstance(record, RemoveUserScramCredentialRecord):
            raise
