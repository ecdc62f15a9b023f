"""Takes a prefix over for a restored cluster, step by step; cut off anywhere, the same command goes on.

The order is what makes it safe: `cluster.json` first, so that the lost cluster's processes, should any live,
find that they are displaced; then everything is read anew; every HEAD is written again; then `CUT` and
`topics.json`; then a listing proves that all that chains name is there. Writes are conditional. The claim in
`cluster.json` is by a process whose incarnation follows from the clusters' ids and the cut, so that a later
run of the command knows it for its own. Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError
from service.base.world import World
from service.inspect.restore_archive import each, places_of
from service.inspect.restore_file import RestoreHeader
from service.inspect.restore_heads import HeirHeads, HeirStarted, WrittenChain
from service.inspect.restore_plan import RestorePlan
from service.inspect.restore_records import Placement, heir_records, numbers_above
from service.inspect.restore_source import (
    CutChoice,
    RestoreSource,
    claim_id,
    is_unfinished_claim,
    plan_of,
    read_source,
    with_newest_orders,
)
from service.metadata.controller.requests import ResourceType
from service.metadata.features import cluster_features
from service.metadata.image import MetadataImage
from service.metadata.records import MetadataRecord
from service.remote.catalog import CatalogEntry
from service.remote.format.ancestors import MAX_ANCESTORS, Ancestor
from service.remote.format.cut_codec import Cuts, ErasureRef, Place, encode_cuts
from service.remote.format.keys import CLUSTER_KEY, CUT_NAME, TOPICS_KEY, head_key
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    MAX_TOPICS_BYTES,
    ClusterFile,
    TopicsFileRow,
    decode_cluster,
    encode_cluster,
    encode_topics,
)
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound, StoreUnavailable, naming
from service.remote.stores.store import ObjectStore, Tagged

QUIET_MS: Final = 30_000
"""Time in which nothing may be written before a prefix is taken over."""
_POLLS: Final = 6
_ATTEMPTS: Final = 5
RESTORER: Final = 0
"""Node id of a restore in stamps"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TakeOverOrder:
    """Order of a take-over.

    `cluster_id`: the heir's, None for `new_id` of a first run, or that of the run before that was cut off.
    `is_forced`: whatever lives or cannot be read, the order is carried out.
    """

    choice: CutChoice
    new_id: str
    cluster_id: str | None = None
    gap: int = 0
    is_forced: bool = False
    quiet_ms: int = QUIET_MS


class Restored(NamedTuple):
    """Result of a take-over or a clone, from which the heir's first records are made.

    `missing`: objects that chains name and that are gone.
    """

    cluster_id: str
    source: RestoreSource
    plan: RestorePlan
    entries: Mapping[Place, CatalogEntry]
    life_id: UUID
    missing: tuple[str, ...] = ()

    def header(self, brokers: tuple[int, ...]) -> RestoreHeader:
        """Return what the file with the heir's first records is for."""
        ref = self.source.ref
        return RestoreHeader(self.cluster_id, self.source.source_id, ref.cut, ref.at_ms, brokers)

    def first_records(self, placement: Placement, *, is_clone: bool = False) -> Iterator[MetadataRecord]:
        """Yield the heir's first records, with numbers above those of all that were lost before it."""
        source = self.source
        numbers = numbers_above(
            source.image,
            source.highest.next_producer_id,
            source.highest.life,
            self.life_id,
            restores_since=source.restores_since,
        )
        features = cluster_features()
        return heir_records(
            source.image,
            self.plan,
            placement,
            numbers,
            self.entries,
            features,
            is_clone=is_clone,
            erasures=source.orders,
        )


class _Claim(NamedTuple):
    """`cluster.json` as it was read, and whether it is the claim of a restore that was cut off."""

    file: ClusterFile
    seen: Tagged
    is_unfinished: bool


def take_over(
    store: ObjectStore,
    order: TakeOverOrder,
    world: World,
    pool: Executor,
    say: Say,
    check: Callable[[RestoreSource, RestorePlan], None],
) -> Restored:
    """Take the prefix over for the heir of the cluster that it belongs to.

    `check` is called with the plan before anything is written, and raises what stops it. Raises `ConfigError`
    where the order cannot be carried out, with the reason.
    """
    return _TakeOver(store, order, world, pool, say).run(check)


class _TakeOver:
    def __init__(
        self, store: ObjectStore, order: TakeOverOrder, world: World, pool: Executor, say: Say
    ) -> None:
        self._store = store
        self._order = order
        self._world = world
        self._pool = pool
        self._say = say

    def run(self, check: Callable[[RestoreSource, RestorePlan], None]) -> Restored:
        why = conditional.probe(self._store, self._world.new_uuid)
        if why is not None:
            raise ConfigError(
                f"--take-over: this store has no conditional writes ({why}), without which a late write of "
                f"the lost cluster cannot be told from ours; clone it by --to"
            )
        claim = self._claim()
        choice = self._choice(claim)
        before = None if claim.is_unfinished or self._order.is_forced else self._tags_of_documents()
        source, plan = read_source(self._store, choice, self._pool, gap=self._order.gap)
        check(source, plan)
        if plan.problems and not self._order.is_forced:
            raise ConfigError(
                "some of the archive cannot be read; make it readable (firn repair, firn fsck), or take over "
                "without it by --force",
                *plan.problems[:20],
            )
        if claim.is_unfinished:
            self._say(f"going on with the restore of cut {source.ref.cut} that was cut off")
            cluster_id = claim.file.cluster_id
        else:
            cluster_id = self._order.cluster_id or self._order.new_id
            self._check_id(claim.file, cluster_id)
            if before is not None:
                self._wait_until_quiet(source, before)
            self._write_claim(claim, cluster_id, source)
        return self._write_all(cluster_id, source)

    # -- the claim

    def _claim(self) -> _Claim:
        try:
            seen = self._store.get_tagged(CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        except ObjectNotFound as e:
            raise ConfigError(f"there is no archive of a cluster here: {e}") from e
        with naming(CLUSTER_KEY):
            file = decode_cluster(seen.data)
        return _Claim(file, seen, is_unfinished_claim(file))

    def _choice(self, claim: _Claim) -> CutChoice:
        """Return which cut to restore: that of the claim, where a restore goes on."""
        order = self._order
        if not claim.is_unfinished:
            return order.choice
        until = claim.file.ancestors[0].until_cut
        choice = order.choice
        if choice.number not in (None, until) or (choice.at_ms, choice.metadata_offset) != (None, None):
            raise ConfigError(
                f"the prefix was taken over for cut {until} by a restore that is not complete: leave out "
                f"--cut, --at and --metadata-offset; an older cut can be chosen once its cluster has started"
            )
        if order.cluster_id not in (None, claim.file.cluster_id):
            raise ConfigError(
                f"--cluster-id {order.cluster_id}: the prefix was taken over for cluster "
                f"{claim.file.cluster_id} by a restore that is not complete; run it without --cluster-id"
            )
        return CutChoice(number=until, allows_loose=True)

    def _check_id(self, file: ClusterFile, cluster_id: str) -> None:
        if cluster_id in (file.cluster_id, *(one.cluster_id for one in file.ancestors)):
            raise ConfigError(
                f"--cluster-id {cluster_id}: the prefix is, or was, that cluster's; an heir has a new id "
                f"(firn random-uuid)"
            )

    def _write_claim(self, claim: _Claim, cluster_id: str, source: RestoreSource) -> None:
        """Replace `cluster.json`; where that is forced, also one that the source has written meanwhile."""
        displaced = claim.file.cluster_id
        for _ in range(_ATTEMPTS if self._order.is_forced else 1):
            now_ms = self._world.clock.now_ms()
            ancestor = Ancestor(displaced, source.ref.cut, now_ms)
            file = claim.file._replace(
                cluster_id=cluster_id,
                stamp=Stamp(now_ms, self._writer(cluster_id, source)),
                members=(),
                present=(),
                renewals=0,
                ancestors=(ancestor, *claim.file.ancestors)[:MAX_ANCESTORS],
            )
            if conditional.replace(self._store, CLUSTER_KEY, encode_cluster(file), claim.seen.tag):
                self._say(f"the prefix is cluster {cluster_id}'s now; cluster {displaced} is displaced")
                return
            claim = self._claim()
            if claim.file.cluster_id != displaced:
                break
        raise ConfigError(f"{CLUSTER_KEY} was written meanwhile: the cluster that writes here lives")

    def _writer(self, cluster_id: str, source: RestoreSource) -> Writer:
        return Writer(RESTORER, claim_id(cluster_id, source.source_id, source.ref.cut))

    # -- whether the source lives

    def _tags_of_documents(self) -> dict[str, str]:
        return {key: self._tag(key) for key in (CLUSTER_KEY, CUT_NAME)}

    def _tag(self, key: str) -> str:
        try:
            info = self._store.head(key)
        except ObjectNotFound:
            return ""
        return info.etag or f"{info.size} {info.last_modified_ms}"

    def _tags_of_heads(self, source: RestoreSource) -> dict[str, str]:
        keys = [head_key(*place) for place in places_of(source.image)]
        return dict(zip(keys, self._pool.map(self._tag, keys), strict=True))

    def _wait_until_quiet(self, source: RestoreSource, before: dict[str, str]) -> None:
        """Raise `ConfigError` unless nothing is written for a while."""
        heads = self._tags_of_heads(source)
        self._say(f"waiting for {self._order.quiet_ms // 1000} s, in which nothing may be written here")
        for _ in range(_POLLS):
            self._world.threads.sleep(self._order.quiet_ms / 1000 / _POLLS)
            self._check_same(before, self._tags_of_documents())
        self._check_same(heads, self._tags_of_heads(source))

    def _check_same(self, before: dict[str, str], after: dict[str, str]) -> None:
        moved = [key for key, tag in after.items() if before.get(key) != tag]
        if moved:
            raise ConfigError(
                f"--take-over: the cluster that writes here lives: {moved[0]} was written within the last "
                f"{self._order.quiet_ms // 1000} s; stop all its nodes, or displace them by --force"
            )

    # -- what is written

    def _write_all(self, cluster_id: str, source: RestoreSource) -> Restored:
        """Write HEADs, `CUT` and `topics.json`, and prove them."""
        self._claimed(cluster_id)
        source = with_newest_orders(self._store, source, cluster_id)
        writer = self._writer(cluster_id, source)
        clock = self._world.clock
        heads = HeirHeads(
            self._store,
            source,
            cluster_id,
            writer,
            clock.now_ms,
            self._world.new_uuid,
        )
        written: dict[Place, WrittenChain] = {
            one.place: one for one in each(self._pool, heads.write, places_of(source.image))
        }
        self._say(f"{sum(one.entry is not None for one in written.values())} HEADs are the heir's")
        plan = plan_of(source, {place: one.found for place, one in written.items()}, gap=self._order.gap)
        self._check_written(plan)
        ancestors = self._claimed(cluster_id).ancestors
        # Partitions that the heir adds again one day begin without an archive.
        self._store.delete([head_key(*place) for place in source.later_places])
        stamp = Stamp(clock.now_ms(), writer)
        cuts = encode_cuts(heir_cuts(cluster_id, source, plan, stamp))
        self._replace(cluster_id, CUT_NAME, MAX_SMALL_BYTES, cuts)
        life = max(source.image.life, source.highest.life) + 1
        rows = topic_rows(source.image)
        topics = encode_topics(cluster_id, 0, rows, stamp, life=life, ancestors=ancestors)
        self._replace(cluster_id, TOPICS_KEY, MAX_TOPICS_BYTES, topics)
        missing = [
            f"{source.image.topics_by_id[place[0]].name}-{place[1]}: {one}"
            for place, found in each(
                self._pool, lambda place: (place, heads.missing(written[place])), written
            )
            for one in found
        ]
        entries = {place: one.entry for place, one in written.items() if one.entry is not None}
        return Restored(cluster_id, source, plan, entries, writer.incarnation, tuple(missing))

    def _check_written(self, plan: RestorePlan) -> None:
        """Raise `ConfigError` where what could be read for the plan could not be read again: a HEAD was not
        written, or the heir would lack records of the cut. The same command goes on."""
        lacking = [
            f"{one.topic_id}/{one.partition}: offsets {one.loaded_end} to {one.end - 1} of the cut"
            for one in plan.incomplete
        ]
        why = [*plan.problems, *lacking][:20]
        if why and not self._order.is_forced:
            raise ConfigError(
                "some of the archive cannot be read any more; run the same command again once it can be, or "
                "with --force to go on without it",
                *why,
            )
        for one in why:
            self._say(f"problem: {one}")

    def _claimed(self, cluster_id: str) -> ClusterFile:
        """Return `cluster.json`, which is this restore's still. Raises `HeirStarted` where another run of it
        was complete, and a node of the heir has taken the prefix over."""
        file = self._claim().file
        if file.cluster_id != cluster_id:
            raise ConfigError(f"{CLUSTER_KEY} is cluster {file.cluster_id}'s now, not {cluster_id}'s")
        if not is_unfinished_claim(file):
            raise HeirStarted(CLUSTER_KEY, cluster_id)
        return file

    def _replace(self, cluster_id: str, key: str, most: int, data: bytes) -> None:
        """Replace a document, whatever a late write of the source has made of it meanwhile, but not what a
        node of the heir has written: that has taken the prefix over before."""
        for _ in range(_ATTEMPTS):
            try:
                seen = conditional.tagged_or_none(self._store, key, max_size=most)
            except CorruptionError as e:
                raise CorruptionError(f"{e}; delete it first") from e
            self._claimed(cluster_id)
            if conditional.write(self._store, key, data, seen):
                return
        raise StoreUnavailable(f"{key} was written by another process at each of {_ATTEMPTS} attempts")


def heir_cuts(cluster_id: str, source: RestoreSource, plan: RestorePlan, stamp: Stamp) -> Cuts:
    """Return `CUT` of the heir: the cut that it begins from is the newest, those before it stay kept.

    Newer ones are of a past that is given up: what they name beyond this cut is in no chain of the heir, and
    goes after the grace.
    Readers of chains and tails alone do not find all of it where a segment reaches beyond it.
    """
    has_overlap = any(one.segment_key for one in plan.partitions.values())
    ref = source.ref._replace(is_complete=not has_overlap)
    older = [] if source.cuts is None else [one for one in source.cuts.kept if one.cut < ref.cut]
    if has_overlap:  # earlier cuts may have waited for the same segment
        older = [one._replace(is_complete=False) for one in older]
    orders = tuple(ErasureRef(one.id, one.key, one.stored_size, one.crc32c) for one in source.orders)
    return Cuts(cluster_id, (*older, ref), orders, stamp)


def topic_rows(image: MetadataImage) -> list[TopicsFileRow]:
    """Return the rows of `topics.json`."""
    return [
        TopicsFileRow(
            topic.name,
            topic.id,
            max(len(topic.partitions), 1),
            image.config(ResourceType.TOPIC, topic.name),
            (state := image.recovered.get(topic.id)) is not None and state.settings_unknown,
        )
        for topic in image.topics_by_id.values()
    ]
