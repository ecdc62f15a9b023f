"""Plan of a restore: what of a lost cluster comes back, from where, and what does not. [P]

From the metadata at the cut, the cut's document, the sections of its tails and what the chains in the bucket
say, `restore_plan` decides for each partition where its archive ends, what its leader loads from tails, and
at which offset the log goes on: beyond the cut's end by a gap, as offsets after it were given out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from service.metadata.controller.adoption_control import EPOCH_MARGIN
from service.metadata.controller.requests import ResourceType
from service.metadata.image import MetadataImage, RestoredTail, TopicImage
from service.remote.format.coverage import Coverage
from service.remote.format.cut_codec import NEVER_LED, NO_LEADER, Cut, CutRef, PartitionCut, Place
from service.remote.format.keys import SegmentKey, parse_key
from service.tiering.cuts.saving_plan import is_always_tailed

OFFSET_GAP: Final = 1_000_000
MAX_OFFSET_GAP: Final = 1 << 40
THROTTLED: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
"""Settings of topics that name brokers of the lost cluster."""

Pieces = Callable[[Place, int, int, int], Coverage]
"""Sections of tails for a place, from an offset to an end, exclusive, behind a batch of a leader epoch."""


class FoundChain(NamedTuple):
    """The archive of one partition, as `restore_chain.heir_chain` has it; offsets are exclusive at the end.

    `newest_end` is where the chain that HEAD names ends, `highest_epoch` the greatest leader epoch that the
    manifests tell, `last_epoch` that of the last record. `overlap` is the key of a segment that begins at
    `end` and reaches beyond the cut, None without one. `problem`: why nothing of the archive can be read;
    `note`: why some of it cannot.
    """

    start: int = 0
    end: int = 0
    segments: int = 0
    size_bytes: int = 0
    last_epoch: int = -1
    highest_epoch: int = 0
    newest_end: int = 0
    written_ms: int = 0
    overlap: str | None = None
    is_published: bool = False
    problem: str | None = None
    note: str | None = None


class PartitionPlan(NamedTuple):
    """One partition of the heir: its log begins at `start`; records below `chain_end` are in the bucket, up
    to `loaded_end` its leader loads them; it goes on at `go_on`.

    `end` is that of the cut. `given_up`: offsets that are known to have existed and do not come back.
    `highest_epoch`: the greatest leader epoch that may have been given out.
    """

    topic_id: UUID
    partition: int
    start: int
    chain_end: int
    loaded_end: int
    end: int
    go_on: int
    chain: FoundChain
    tails: tuple[str, ...]
    tail_bytes: int
    given_up: int
    highest_epoch: int
    is_incomplete: bool
    cut_key: str
    """the document of the cut whose tails are loaded"""
    segment_key: str
    """a segment that reaches beyond the cut and is loaded instead of tails; empty for none"""

    @property
    def is_empty(self) -> bool:
        """True where the log had records and none comes back."""
        return self.given_up > 0 and self.loaded_end == self.start


class TopicPlan(NamedTuple):
    """Sums of one topic; `start` and `end` are sums of offsets over its partitions."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    start: int
    end: int
    chain_bytes: int
    tail_bytes: int
    given_up: int
    empty_partitions: int


class RestorePlan(NamedTuple):
    """Result of planning: all that a restore from one cut brings back, and what not.

    `age_ms` is between the cut and the newest document in the bucket. `problems` stop a restore unless it is
    forced; `notes` are worth a line; `dropped` is what belonged to the lost cluster's machines; `to_set` what
    the bucket does not have, and somebody must set anew.
    """

    source_id: str
    ref: CutRef
    metadata_end: int
    age_ms: int
    topics: tuple[TopicPlan, ...]
    partitions: Mapping[Place, PartitionPlan]
    passed_over: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    dropped: tuple[str, ...]
    to_set: tuple[str, ...]

    @property
    def incomplete(self) -> tuple[PartitionPlan, ...]:
        """Partitions of which the cut promised more than chains and tails have."""
        return tuple(one for one in self.partitions.values() if one.is_incomplete)

    @property
    def given_up(self) -> int:
        return sum(one.given_up for one in self.topics)


class PlanFacts(NamedTuple):
    """Facts that were read: the cut, the metadata at it, chains by partition, and the highest that anything
    else tells (`epochs` and `ends` by partition).

    `newest_ms` is the newest time in any document, `restores_since` how many clusters were restored since the
    cut and lost again, `restores` how many ever; `later_topics` were made after it, `later_partitions` added
    to topics; `later_cuts` are complete and could be restored in its place.
    """

    source_id: str
    ref: CutRef
    cut: Cut
    image: MetadataImage
    chains: Mapping[Place, FoundChain]
    epochs: Mapping[Place, int]
    ends: Mapping[Place, int]
    newest_ms: int
    passed_over: tuple[str, ...] = ()
    restores_since: int = 0
    restores: int = 0
    later_topics: tuple[str, ...] = ()
    later_partitions: tuple[str, ...] = ()
    later_cuts: tuple[int, ...] = ()


class Told(NamedTuple):
    """The highest leader epoch and end of a partition that anything but its cut tells, and how many heirs
    have gone on behind the cut since."""

    epoch: int
    end: int
    restores_since: int = 0


def restore_plan(
    facts: PlanFacts, pieces: Pieces, *, gap: int = OFFSET_GAP, wanted: Callable[[str], bool] | None = None
) -> RestorePlan:
    """Return the plan for all topics, or those whose names are `wanted`."""
    image, cut = facts.image, facts.cut
    topics: list[TopicPlan] = []
    partitions: dict[Place, PartitionPlan] = {}
    for name in sorted(image.topics_by_name):
        if wanted is not None and not wanted(name):
            continue
        topic = image.topics_by_name[name]
        found = list(_partitions(facts, topic, pieces, gap))
        partitions.update({(one.topic_id, one.partition): one for one in found})
        topics.append(_topic(topic, found))

    def named(one: PartitionPlan, words: str) -> str:
        return f"{image.topics_by_id[one.topic_id].name}-{one.partition}: {words}"

    plans = partitions.values()
    problems = tuple(named(one, one.chain.problem) for one in plans if one.chain.problem is not None)
    notes = [named(one, one.chain.note) for one in plans if one.chain.note is not None]
    return RestorePlan(
        facts.source_id,
        facts.ref,
        cut.metadata_end,
        max(facts.newest_ms - cut.at_ms, 0),
        tuple(topics),
        partitions,
        facts.passed_over,
        problems,
        (*_notes(image, topics, facts), *_leaderless(facts, plans), *notes),
        tuple(_dropped(image)),
        tuple(_to_set(image, cut)),
    )


def _partitions(facts: PlanFacts, topic: TopicImage, pieces: Pieces, gap: int) -> Iterator[PartitionPlan]:
    rows = facts.cut.topics.get(topic.id, ())
    # Its keeper knows which topics are saved whole, and says of a complete cut that they are.
    is_promised = not facts.ref.is_complete and is_tailed(facts.image, topic)
    for number, partition in topic.partitions.items():
        place = topic.id, number
        row = rows[number] if number < len(rows) else NEVER_LED
        epochs = (partition.leader_epoch, facts.epochs.get(place, 0))
        chain = facts.chains.get(place, FoundChain())
        # A row of the cut before may be an ancestor's, behind which the cut's own cluster has gone on.
        restores = facts.restores if row.leader_epoch == NO_LEADER else facts.restores_since
        told = Told(max(epochs), max(chain.newest_end, facts.ends.get(place, 0)), restores)
        plan = _partition(place, row, chain, pieces, gap, told, facts.ref.key, is_promised=is_promised)
        earlier = facts.image.restored_tails.get(place)
        # One that was still loading has nothing of its own; the earlier cut's tails are kept as long.
        yield plan if earlier is None or row.end >= earlier.go_on else _again(plan, earlier, gap)


def _partition(
    place: Place,
    row: PartitionCut,
    chain: FoundChain,
    pieces: Pieces,
    gap: int,
    told: Told,
    cut_key: str,
    *,
    is_promised: bool,
) -> PartitionPlan:
    end = max(row.end, chain.end)
    first = max(chain.end, row.start) if chain.segments else row.start
    found = pieces(place, first, max(first, row.tailed_end), chain.last_epoch if chain.segments else -1)
    reach = found.reaches
    is_incomplete = False
    segment_key = ""
    if reach < end and (overlap := _overlap(chain)) is not None:
        # The segment has all of it, and is proved by itself.
        first = max(first, overlap.base_offset)
        reach, segment_key = end, chain.overlap or ""
    elif reach < end:
        is_incomplete = chain.problem is None and (row.waits or row.saved >= row.end or is_promised)
    given_up = end - reach + max(told.end - end, 0)
    start = chain.start if chain.segments else first
    if reach == first and not chain.segments:
        start = first = reach = end
    sections = [] if segment_key else [piece.span.section for piece in found.pieces]
    epochs = [epoch for one in sections for epoch in (one.leader_epoch, one.last_batch_epoch)]
    return PartitionPlan(
        *place,
        start=start,
        chain_end=first,
        loaded_end=reach,
        end=end,
        go_on=_go_on(end, gap, told),
        chain=chain,
        tails=() if segment_key else tuple(dict.fromkeys(piece.span.tail for piece in found.pieces)),
        tail_bytes=sum(one.length for one in sections),
        given_up=given_up,
        highest_epoch=max(told.epoch, row.leader_epoch, row.last_epoch, chain.highest_epoch, *epochs)
        + EPOCH_MARGIN * told.restores_since,
        is_incomplete=is_incomplete,
        cut_key=cut_key,
        segment_key=segment_key,
    )


def _go_on(end: int, gap: int, told: Told) -> int:
    """Return where a log goes on: behind all offsets that may have been given out (invariant T20)."""
    # From an older cut, what is known to lie behind it may be more than a gap.
    known = end if told.end <= end + gap // 2 else told.end
    return known + gap * (1 + told.restores_since)


def _overlap(chain: FoundChain) -> SegmentKey | None:
    parsed = parse_key(chain.overlap) if chain.overlap is not None else None
    return parsed if isinstance(parsed, SegmentKey) else None


def _again(plan: PartitionPlan, earlier: RestoredTail, gap: int) -> PartitionPlan:
    return plan._replace(
        chain_end=earlier.chain_end,
        loaded_end=earlier.end_offset,
        end=earlier.end_offset,
        go_on=earlier.go_on + gap,
        given_up=0,
        is_incomplete=False,
        cut_key=earlier.cut_key,
        segment_key=earlier.segment_key,
    )


def is_tailed(image: MetadataImage, topic: TopicImage) -> bool:
    """Return whether a cut promises all records of the topic, as far as its own settings tell."""
    settings = image.config(ResourceType.TOPIC, topic.name)
    default = image.config(ResourceType.BROKER, "").get("firn.tail.default.enable", "true")
    return is_always_tailed(
        topic.name,
        is_enabled=settings.get("firn.tail.enable", default).strip().lower() == "true",
        is_tiered=settings.get("remote.storage.enable", "").strip().lower() == "true",
    )


def _topic(topic: TopicImage, plans: Iterable[PartitionPlan]) -> TopicPlan:
    found = list(plans)
    return TopicPlan(
        topic.name,
        topic.id,
        len(found),
        replication_factor_of(topic),
        sum(one.start for one in found),
        sum(one.end for one in found),
        sum(one.chain.size_bytes for one in found),
        sum(one.tail_bytes for one in found),
        sum(one.given_up for one in found),
        sum(one.is_empty for one in found),
    )


def replication_factor_of(topic: TopicImage) -> int:
    """Return the topic's own number of replicas, without those that a reassignment was adding."""
    first = topic.partitions.get(0)
    if first is None:
        return 1
    kept = [one for one in first.replicas if one not in first.adding_replicas]
    return max(len(kept), 1)


def needs_empty_manifest(image: MetadataImage, topic: TopicImage) -> bool:
    """Return whether a late first HEAD of the source may arrive for a partition of the topic without one."""
    settings = image.config(ResourceType.TOPIC, topic.name)
    return settings.get("remote.storage.enable", "").strip().lower() == "true"


def _notes(image: MetadataImage, topics: Iterable[TopicPlan], facts: PlanFacts) -> Iterator[str]:
    if not facts.cut.is_exact:
        yield "the cut is loose: what one partition has may be caused by records that another lacks"
    for topic in topics:
        if topic.empty_partitions:
            yield (
                f"{topic.name}: {topic.empty_partitions} of {topic.partitions} partitions come back empty: "
                f"neither tails nor an archive have their records"
            )
    if facts.later_topics:
        yield (
            f"{len(facts.later_topics)} topics were made after the cut and do not come back: "
            f"{_some(list(facts.later_topics))}"
        )
    if facts.later_partitions:
        yield (
            f"{len(facts.later_partitions)} partitions were added after the cut and do not come back: "
            f"{_some(list(facts.later_partitions))}"
        )
    if facts.later_cuts:
        yield (
            f"{len(facts.later_cuts)} newer cuts can be restored, too, up to cut {facts.later_cuts[-1]}; a "
            f"take-over from this one gives them up for good, a clone (--to) leaves them"
        )
    if image.transaction is not None:
        yield "a change of the metadata was not complete at the cut and is left out"


def _leaderless(facts: PlanFacts, plans: Iterable[PartitionPlan]) -> Iterator[str]:
    """Yield what comes back of partitions that nobody led at a loose cut: the cut knows nothing of their
    last records."""
    known: list[str] = []
    unknown: list[str] = []
    for one in plans:
        rows = facts.cut.topics.get(one.topic_id, ())
        row = rows[one.partition] if one.partition < len(rows) else NEVER_LED
        if row.leader_epoch == NO_LEADER:
            name = facts.image.topics_by_id[one.topic_id].name
            (known if one.end > 0 else unknown).append(f"{name}-{one.partition}")
    if known:
        yield (
            f"{len(known)} partitions had no leader at the cut, or one that could not read them; they come "
            f"back as the cut before had them, or as far as their archive goes: {_some(known)}"
        )
    if unknown:
        yield (
            f"{len(unknown)} partitions had no leader at the cut, or one that could not read them, and the "
            f"bucket has nothing of them; they come back empty: {_some(unknown)}"
        )


def _dropped(image: MetadataImage) -> Iterator[str]:
    brokers = ", ".join(map(str, sorted(image.brokers)))
    yield f"registrations of brokers ({brokers or 'none'}) and controllers, the voters of the quorum"
    yield "in-sync replicas, leaders and directories of partitions"
    moving = sum(
        partition.is_moving
        for topic in image.topics_by_id.values()
        for partition in topic.partitions.values()
    )
    if moving:
        yield f"reassignments of {moving} partitions"
    throttled = sorted(
        name
        for (kind, name), settings in image.configs.items()
        if kind == ResourceType.TOPIC and THROTTLED & settings.keys()
    )
    if throttled:
        yield f"lists of throttled replicas of {len(throttled)} topics: {_some(throttled)}"
    for (kind, name), settings in sorted(image.configs.items()):
        if kind == ResourceType.BROKER and name:
            yield f"settings of broker {name}: {_some(sorted(settings))}"


def _to_set(image: MetadataImage, cut: Cut) -> Iterator[str]:
    if cut.metadata.omitted_users:
        yield (
            f"passwords of {cut.metadata.omitted_users} users with SCRAM credentials, which the bucket does "
            f"not have (firn.remote.metadata.credentials): firn user add"
        )
    if cut.metadata.omitted_settings:
        yield f"{cut.metadata.omitted_settings} settings of brokers that were passwords: firn config set"
    if cut.metadata.omitted_users and not image.tokens:
        yield "delegation tokens: clients ask for new ones"


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
