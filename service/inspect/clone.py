"""Clones a cluster into another prefix, as it was at a cut. The source is only read, and may live.

What the cut's chains and tails name is copied under the same keys, then manifests and HEADs are written, then
the small documents. A clone of some topics has nothing of the others: tails, metadata and cut are written
without them. Cut off anywhere, the same command goes on. Objects that the source's retention takes meanwhile
make the clone fail, with their names. Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from crc32c import crc32c

from service.base.errors import ConfigError, CorruptionError
from service.base.world import World
from service.inspect.clone_tails import (
    CopySections,
    PartOfTail,
    TailsToCopy,
    chosen_cut,
    chosen_tails,
    section_copier,
)
from service.inspect.object_copies import CopyObject
from service.inspect.restore_archive import AT_ONCE, OpenedChain, each, is_by, open_heir_chain, summary_of
from service.inspect.restore_chain import HeirChain, NewVersion
from service.inspect.restore_heads import HeirStarted, named_objects, write_chain
from service.inspect.restore_plan import FoundChain, PartitionPlan, RestorePlan, needs_empty_manifest
from service.inspect.restore_source import (
    CutChoice,
    RestoreSource,
    claim_id,
    read_source,
    with_newest_orders,
)
from service.inspect.take_over import RESTORER, Restored, Say, heir_cuts, topic_rows
from service.metadata.controller.adoption_control import EPOCH_MARGIN
from service.remote.catalog import CatalogEntry
from service.remote.format.ancestors import MAX_ANCESTORS, Ancestor
from service.remote.format.cut_codec import Place, TailRef, encode_cut, encode_cuts
from service.remote.format.keys import CLUSTER_KEY, CUT_NAME, TOPICS_KEY, head_key, partition_prefix
from service.remote.format.manifest import Child, Manifest, PageRef
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    MAX_TOPICS_BYTES,
    ClusterFile,
    decode_cluster,
    decode_head,
    encode_cluster,
    encode_head,
    encode_topics,
)
from service.remote.format.stamp import Stamp, Writer
from service.remote.reading.object_reader import Chain, open_named
from service.remote.stores import conditional
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.errors import (
    UNREADABLE,
    ObjectNotFound,
    StoreRefused,
    StoreUnavailable,
    naming,
    raise_of_the_store,
)
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.archive_attempt import catalog_entry

_ATTEMPTS: Final = 5
_TRIES: Final = 2
_MOST_NAMED: Final = 20
_WRITE_PRICE: Final = 5e-6
"""US$ of a request that writes, by S3's list"""
_COPY_S: Final = 0.1
"""Time of one copy, as a rule"""


@dataclass(frozen=True, slots=True)
class CloneOrder:
    """Order of a clone; `wanted` chooses topics by name, None all."""

    choice: CutChoice
    new_id: str
    cluster_id: str | None = None
    gap: int = 0
    wanted: Callable[[str], bool] | None = None


class _Object(NamedTuple):
    """An object that a clone needs; `crc32c` is None where only the object itself tells it."""

    key: str
    size: int
    crc32c: int | None = None


class _Named(NamedTuple):
    """One partition's chain in the source, and the objects that a clone needs of it."""

    place: Place
    opened: OpenedChain
    objects: tuple[_Object, ...]


def clone(
    source: ObjectStore,
    target: ObjectStore,
    copy: CopyObject,
    order: CloneOrder,
    world: World,
    pool: Executor,
    say: Say,
    check: Callable[[RestoreSource, RestorePlan], None],
) -> Restored:
    """Clone what the order chooses. `check` is called with the plan before anything is written.

    Raises `ConfigError` where it cannot be, with the reasons.
    """
    return _Clone(source, target, copy, order, world, pool, say).run(check)


def _check_readable(plan: RestorePlan) -> None:
    if plan.problems:
        raise ConfigError("some of the archive cannot be read (firn fsck)", *plan.problems[:_MOST_NAMED])


def _is_as_planned(plan: PartitionPlan, now: FoundChain) -> bool:
    """Return whether a chain ends as it was planned: what the heir loads begins there."""
    has_segment = not plan.segment_key or plan.segment_key == now.overlap
    return has_segment and (plan.chain.start, plan.chain.end) == (now.start, now.end)


@dataclass(slots=True)
class _Clone:
    source: ObjectStore
    target: ObjectStore
    copy: CopyObject
    order: CloneOrder
    world: World
    pool: Executor
    say: Say
    missing: list[str] = field(default_factory=list)

    def run(self, check: Callable[[RestoreSource, RestorePlan], None]) -> Restored:
        found, plan = self._read(self.order.choice)
        check(found, plan)
        _check_readable(plan)
        cluster_id = self._claim(found, plan)
        writer = self._writer(cluster_id, found, plan)
        tails = self._tails(found, plan)
        copied = sum(one.chain.segments for one in plan.partitions.values()) + len(tails.whole)
        copied += len(tails.parts)
        self.say(
            f"copying some {copied} objects: {copied} requests, {copied * _WRITE_PRICE:.2f} US$ by S3's "
            f"list, some {max(copied * _COPY_S / AT_ONCE / 60, 1):.0f} min"
        )
        refs = self._copy_tails(tails)
        entries: dict[Place, CatalogEntry] = {}
        waiting = sorted(plan.partitions)
        while waiting:
            moved: list[Place] = []
            for at in range(0, len(waiting), AT_ONCE):
                some = waiting[at : at + AT_ONCE]
                entries.update(self._partitions(found, plan, some, cluster_id, writer, moved))
            if moved:
                plan = self._planned_again(found, plan, moved)
            waiting = moved
        self._fail_if_missing()
        self._write_documents(found, plan, refs, cluster_id, writer)
        return Restored(cluster_id, found, plan, entries, writer.incarnation)

    def _read(self, choice: CutChoice) -> tuple[RestoreSource, RestorePlan]:
        return read_source(self.source, choice, self.pool, gap=self.order.gap, wanted=self.order.wanted)

    def _planned_again(self, found: RestoreSource, plan: RestorePlan, moved: list[Place]) -> RestorePlan:
        """Return the plan with what is there now of the partitions whose chains have moved since: the source
        lives, and archives more of what the cut has. Below the cut's end a chain moves a few times at most.
        """
        self.say(f"the source has archived more of {len(moved)} partitions meanwhile: they are planned again")
        _, again = self._read(self.order.choice._replace(number=found.ref.cut, at_ms=None))
        _check_readable(again)
        return plan._replace(
            partitions={**plan.partitions, **{place: again.partitions[place] for place in moved}}
        )

    def _writer(self, cluster_id: str, found: RestoreSource, plan: RestorePlan) -> Writer:
        """Return who writes: it follows from what is cloned, so that another run knows this one's claim."""
        claim = claim_id(cluster_id, found.source_id, found.ref.cut)
        if self.order.wanted is not None:
            claim = uuid5(claim, " ".join(map(str, sorted(_topics(plan)))))
        return Writer(RESTORER, claim)

    def _claim(self, found: RestoreSource, plan: RestorePlan) -> str:
        """Make the target the heir's; return its id."""
        wanted = self.order.cluster_id or self.order.new_id
        if wanted in found.owners:
            raise ConfigError(f"--cluster-id {wanted}: a clone has an id of its own (firn random-uuid)")
        now_ms = self.world.clock.now_ms()
        stamp = Stamp(now_ms, self._writer(wanted, found, plan))
        file = ClusterFile(wanted, stamp, ancestors=_ancestors(found, now_ms))
        seen = conditional.tagged_or_none(self.target, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        if seen is not None:
            with naming(CLUSTER_KEY):
                known = decode_cluster(seen.data)
            claim = self._writer(known.cluster_id, found, plan).incarnation
            is_ours = known.stamp is not None and known.stamp.writer.incarnation == claim
            if is_ours and self.order.cluster_id in (None, known.cluster_id):
                self.say(f"going on with the clone for cluster {known.cluster_id}")
                return known.cluster_id
            raise ConfigError(
                f"--to: the prefix belongs to cluster {known.cluster_id}; give an empty prefix, and for a "
                f"clone that was cut off the same --topics and --cut ({found.ref.cut} is the newest now)"
            )
        if any(not info.key.startswith(f"{PROBE_PREFIX}/") for info in islice(self.target.list(""), 8)):
            raise ConfigError("--to: the prefix is not empty, and no clone's; give an empty one")
        if not conditional.create(self.target, CLUSTER_KEY, encode_cluster(file)):
            raise ConfigError("--to: another process has taken the prefix at this moment")
        return wanted

    def _tails(self, found: RestoreSource, plan: RestorePlan) -> TailsToCopy:
        if self.order.wanted is None:
            return TailsToCopy(found.cut.tails, ())
        return chosen_tails(self.source, found.cut, _topics(plan), found.owners, self.pool)

    def _copy_tails(self, tails: TailsToCopy) -> list[TailRef]:
        """Copy tails; return how the clone's cut names them."""
        self._copy_all([_Object(ref.key, ref.size) for ref in tails.whole])
        refs = list(tails.whole)
        with section_copier(self.source, self.target, self.world.threads) as copy:
            for ref in self.pool.map(lambda part: self._copied_part(copy, part), tails.parts):
                if isinstance(ref, str):
                    self.missing.append(ref)
                else:
                    refs.append(ref)
        return refs

    def _copied_part(self, copy: CopySections, part: PartOfTail) -> TailRef | str:
        try:
            return copy(part)
        except ObjectNotFound as e:
            return str(e)

    def _partitions(
        self,
        found: RestoreSource,
        plan: RestorePlan,
        some: list[Place],
        cluster_id: str,
        writer: Writer,
        moved: list[Place],
    ) -> Iterator[tuple[Place, CatalogEntry]]:
        """Copy some partitions and write their HEADs; yield their entries in the catalog.

        Those whose chains are not those of the plan any more are added to `moved`, and not copied.
        """
        named = []
        for one in each(self.pool, lambda place: self._named(found, plan, place), some):
            if _is_as_planned(plan.partitions[one.place], summary_of(one.opened)):
                named.append(one)
            else:
                moved.append(one.place)
        self._copy_all([one for partition in named for one in partition.objects])
        self._fail_if_missing()
        for place, entry in each(
            self.pool,
            lambda place: self._publish(found, by_place[place], cluster_id, writer),
            list(by_place := {one.place: one for one in named}),
        ):
            if entry is not None:
                yield place, entry

    def _named(self, found: RestoreSource, plan: RestorePlan, place: Place) -> _Named:
        opened = open_heir_chain(self.source, found.owners, found.image, found.cut, place)
        heir = opened.heir
        objects = [_object(one) for one in named_objects(self.source, heir.base)]
        objects += map(_object, heir.following)
        if plan.partitions[place].segment_key and heir.overlap is not None:
            objects.append(_object(heir.overlap))
        there = {info.key for info in self.target.list(partition_prefix(*place))}
        return _Named(place, opened, tuple(one for one in objects if one.key not in there))

    def _copy_all(self, objects: list[_Object]) -> None:
        for missing in self.pool.map(self._copied, objects):
            if missing is not None:
                self.missing.append(missing)

    def _copied(self, one: _Object) -> str | None:
        """Copy an object, twice where its bytes changed on their way; return why it cannot be."""
        try:
            for _ in range(_TRIES):
                self.copy(one.key, one.size)
                if one.crc32c is None:
                    return None
                if crc32c(self.target.get(one.key, max_size=one.size)) == one.crc32c:
                    return None
        except (ObjectNotFound, CorruptionError) as e:
            return str(e)
        return f"{one.key}: its copy has other bytes"

    def _fail_if_missing(self) -> None:
        if self.missing:
            raise ConfigError(
                f"{len(self.missing)} objects were taken by the source's retention meanwhile; give its "
                "firn.remote.object.grace.ms more time than a clone takes, or clone a later cut",
                *self.missing[:_MOST_NAMED],
            )

    def _publish(
        self, found: RestoreSource, named: _Named, cluster_id: str, writer: Writer
    ) -> tuple[Place, CatalogEntry | None]:
        place, opened = named.place, named.opened
        heir, published = opened.heir, opened.published
        topic = found.image.topics_by_id[place[0]]
        has_archive = heir.segments or published is not None or place in found.image.remote
        if not has_archive and not needs_empty_manifest(found.image, topic):
            return place, None
        entry, partition = found.image.remote.get(place), found.image.partition(*place)
        versions = (
            0 if published is None else published.manifest.version,
            0 if entry is None else entry.version,
        )
        epochs = (opened.highest_epoch, 0 if partition is None else partition.leader_epoch)
        for _ in range(_ATTEMPTS):
            seen, before = self._published_before(place, cluster_id, writer)
            if before is not None and _has_offsets_of(before.manifest, heir):
                return place, catalog_entry(before)  # of another run, whose file names it, too
            stamp = Stamp(self.world.clock.now_ms(), writer)
            version = max(*versions, 0 if before is None else before.manifest.version) + 1
            numbers = NewVersion(cluster_id, version, max(epochs) + EPOCH_MARGIN, stamp)
            chain = write_chain(self.target, heir, None, numbers, self.world.new_uuid)
            if conditional.write(self.target, head_key(*place), encode_head(chain.head), seen):
                return place, catalog_entry(chain)
        raise _written_by_others(head_key(*place))

    def _published_before(
        self, place: Place, cluster_id: str, writer: Writer
    ) -> tuple[Tagged | None, Chain | None]:
        """Return the target's HEAD, and its chain where that can be read: another run of this clone has
        written it. Raises `HeirStarted` where it is of a node of the clone."""
        key = head_key(*place)
        seen = conditional.tagged_or_none(self.target, key, max_size=MAX_SMALL_BYTES)
        if seen is None:
            return None, None
        try:
            head = decode_head(seen.data)
            if not is_by(head, writer):
                raise HeirStarted(key, cluster_id)
            return seen, Chain(open_named(self.target, head), head)
        except UNREADABLE as e:
            raise_of_the_store(e)
            return seen, None

    def _write_documents(
        self,
        found: RestoreSource,
        plan: RestorePlan,
        tails: list[TailRef],
        cluster_id: str,
        writer: Writer,
    ) -> None:
        self._check_claimed(cluster_id, writer)
        stamp = Stamp(self.world.clock.now_ms(), writer)
        ref = found.ref
        if self.order.wanted is None:
            metadata = found.cut.metadata
            self._copy_document(_Object(metadata.key, metadata.size, metadata.crc32c), "the cut was let go")
            self._copy_document(_Object(ref.key, ref.stored_size, ref.crc32c), "the cut was let go")
        else:
            chosen = chosen_cut(found.cut, found.image, _topics(plan), tails, writer.incarnation)
            self.target.put(chosen.cut.metadata.key, chosen.snapshot)
            data = encode_cut(chosen.cut)
            self.target.put(ref.key, data)
            ref = ref._replace(stored_size=len(data), crc32c=crc32c(data))
        self._copy_orders(found)
        ancestors = _ancestors(found, stamp.written_ms)
        life = max(found.image.life, found.highest.life) + 1
        names = {topic.name for topic in plan.topics}
        rows = [row for row in topic_rows(found.image) if row.name in names]
        topics = encode_topics(cluster_id, 0, rows, stamp, life=life, ancestors=ancestors)
        cuts = heir_cuts(cluster_id, found._replace(cuts=None, ref=ref), plan, stamp)
        self._replace(cluster_id, writer, TOPICS_KEY, MAX_TOPICS_BYTES, topics)
        self._fail_if_ordered(found)
        self._replace(cluster_id, writer, CUT_NAME, MAX_SMALL_BYTES, encode_cuts(cuts))

    def _replace(self, cluster_id: str, writer: Writer, key: str, most: int, data: bytes) -> None:
        """Replace a document that another run may have written, but not what a node of the clone has: that
        has taken the prefix over before."""
        for _ in range(_ATTEMPTS):
            seen = conditional.tagged_or_none(self.target, key, max_size=most)
            self._check_claimed(cluster_id, writer)
            if conditional.write(self.target, key, data, seen):
                return
        raise _written_by_others(key)

    def _check_claimed(self, cluster_id: str, writer: Writer) -> None:
        """Raise `HeirStarted` where a node of the clone has taken the prefix over."""
        with naming(CLUSTER_KEY):
            stamp = decode_cluster(self.target.get(CLUSTER_KEY, max_size=MAX_SMALL_BYTES)).stamp
        if stamp is None or stamp.writer.incarnation != writer.incarnation:
            raise HeirStarted(CLUSTER_KEY, cluster_id)

    def _copy_orders(self, found: RestoreSource) -> None:
        """Copy the orders to erase keys: what the clone has of their topics may have the keys."""
        for order in found.orders:
            document = _Object(order.key, order.stored_size, order.crc32c)
            self._copy_document(document, "an order to erase keys ended")

    def _copy_document(self, one: _Object, why: str) -> None:
        try:
            problem = self._copied(one)
        except StoreRefused as e:
            raise_of_the_store(e)
            problem = str(e)
        if problem is not None:
            raise ConfigError(f"{why} meanwhile, or cannot be copied; clone again: {problem}")

    def _fail_if_ordered(self, found: RestoreSource) -> None:
        """Raise `ConfigError` if the source has taken orders to erase keys meanwhile: the clone would have
        their records, and not the orders. Without `CUT` it is no cluster yet."""
        known = {one.id for one in found.orders}
        newest = with_newest_orders(self.source, found, found.source_id).orders
        if late := [str(one.id) for one in newest if one.id not in known]:
            raise ConfigError(
                "the source has taken orders to erase keys while it was cloned; the same command goes on "
                f"with them, as long as cut {found.ref.cut} is kept",
                *late[:_MOST_NAMED],
            )


def _object(child: Child) -> _Object:
    if isinstance(child, PageRef):
        return _Object(child.key, child.stored_size, child.crc32c)
    return _Object(child.key, child.size)


def _has_offsets_of(manifest: Manifest, heir: HeirChain) -> bool:
    """Return whether the chain of a manifest is that of the same cut: all that it names was copied before."""
    return (manifest.start_offset, manifest.end_offset) == (heir.start_offset, heir.end_offset)


def _written_by_others(key: str) -> StoreUnavailable:
    return StoreUnavailable(f"{key} was written by another process at each of {_ATTEMPTS} attempts")


def _topics(plan: RestorePlan) -> frozenset[UUID]:
    return frozenset(topic.topic_id for topic in plan.topics)


def _ancestors(found: RestoreSource, now_ms: int) -> tuple[Ancestor, ...]:
    """Return the source and those before it, whose segments and tails the clone has, too."""
    return (Ancestor(found.source_id, found.ref.cut, now_ms), *found.ancestors)[:MAX_ANCESTORS]
