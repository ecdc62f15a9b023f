"""`firn.remote.recover`: takes over what the bucket has and this node's metadata lacks, before serving.

An operator requests it, and knows that no other node writes to the prefix: after a lost disk (with a new one
and the same `firn.cluster.id`), or a restore from a backup. The newest copy of the metadata in the bucket is
the base; archives that go beyond it count as they are. All of it is one transaction of the metadata, with the
work left to do: local logs are compared with their archives when they are opened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError, UnknownVersion
from service.base.steps import at_once
from service.config.settings import BrokerConfig
from service.metadata.bucket_copy import NewestCopy, newest_copy
from service.metadata.controller.adoption_control import Adoption, BucketContent, adopt
from service.metadata.controller.recovered_topics import recovered_topics
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.publisher import Publisher
from service.remote.catalog import Erasure
from service.remote.format.cut_codec import Cuts
from service.remote.format.manifest_codec import TopicsFile
from service.remote.format.metadata_ref import MetadataRef
from service.remote.reading.erasure_orders import orders_to_restore
from service.remote.reading.tails import open_cuts
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, StoreRefused, raise_of_the_store
from service.remote.stores.store import ObjectStore
from service.replicas.dynamic_config import check_topics, dynamic_config
from service.tiering.recovery import RecoveredArchive, check_prefix, read_archive
from service.tiering.shared_objects import read_topics

log = logging.getLogger(__name__)

_MOST_LOGGED: Final = 20


class BucketContents(NamedTuple):
    """Contents of the bucket: the newest copy of the metadata, `topics.json`, the archives of partitions,
    descriptions of problems with the first two, and the orders to erase keys that are not gone."""

    newest: NewestCopy
    listed: TopicsFile | None
    archive: RecoveredArchive
    problems: Sequence[str]
    erasures: tuple[Erasure, ...] = ()


def read_bucket(store: ObjectStore, cluster_id: str, image: MetadataImage) -> BucketContents:
    """Read and check the bucket; `image` is this node's metadata. Blocks: for a pool's thread.

    Raises `ConfigError` if the prefix is another cluster's, or has documents of two independent recoveries;
    `CorruptionError` if `cluster.json` is damaged, or neither a copy of the metadata nor `topics.json` can be
    read; `UnknownVersion` for a document of later software; `StorageError` if the store does not answer.
    """
    ancestors = check_prefix(store, cluster_id).ancestors
    newest = newest_copy(store)
    rival = newest.rival or (newest.copy and newest.copy.why_of_another_life(image))
    if rival:
        raise ConfigError(
            f"firn.remote.recover: metadata of two recoveries of one bucket lies here, and nothing says "
            f"which of them is the cluster: {rival}. Move the copies of the other one away and start again"
        )
    problems = list(newest.problems)
    listed: TopicsFile | None = None
    try:
        listed = read_topics(store)
    except UnknownVersion:
        raise
    except (CorruptionError, StoreRefused) as e:
        raise_of_the_store(e)
        if newest.copy is None:
            raise
        problems.append(f"{e}; the copy of the metadata says which topics there are")
    owners = (cluster_id, *(one.cluster_id for one in ancestors))
    if listed is not None and listed.cluster_id not in owners:
        problems.append(f"topics.json is of cluster {listed.cluster_id}, ignored")
        listed = None
    if newest.copy is None and listed is None:
        raise ConfigError(
            "firn.remote.recover: there is neither a copy of the metadata nor a topics.json under "
            "firn.remote.url (firn repair)"
        )
    copy = newest.copy.image if newest.copy is not None else MetadataImage()
    archive = read_archive(store, cluster_id, copy.remote, {*copy.tombstones, *image.tombstones}, ancestors)
    erasures = orders_to_restore(store, _cuts(store, problems), owners)
    return BucketContents(newest, listed, archive, problems, erasures)


def _cuts(store: ObjectStore, problems: list[str]) -> Cuts | None:
    """Return `CUT`; None where there is none or it cannot be read, which goes to `problems`."""
    try:
        return open_cuts(store)
    except ObjectNotFound:
        return None
    except UnknownVersion:
        raise
    except UNREADABLE as e:
        raise_of_the_store(e)
        problems.append(f"{e}; all orders to erase keys in the bucket count")
        return None


async def adopt_bucket(
    bucket: BucketContents,
    catalog: ControllerCatalog,
    metadata: Publisher,
    config: BrokerConfig,
    life_id: UUID,
) -> None:
    """Commit the contents of the bucket to the metadata, and log what is taken over and what is not.
    `life_id` is the random id of the life that begins.

    Raises `ConfigError`, with nothing taken over, if this node cannot serve under the recovered settings.
    """
    image = metadata.image
    found = found_of(bucket, image, metadata)
    _check_settings(image, found, config, life_id)
    adoption = await catalog.adopt(found, life_id)
    _log_adoption(bucket, found, adoption, metadata.image)


def found_of(bucket: BucketContents, image: MetadataImage, metadata: Publisher) -> BucketContent:
    """Return what a node with the metadata `image` adopts of the bucket."""
    copy = bucket.newest.copy
    topics = recovered_topics(
        copy.image if copy is not None else None, bucket.listed, bucket.archive, image.tombstones
    )
    is_copy_newer = copy is not None and not _goes_on_from(image, copy.image, metadata)
    for refusal in topics.refused:
        log.error("firn.remote.recover: not taken over: %s", refusal)
    lives = (
        0 if copy is None else copy.image.life,
        0 if bucket.listed is None else bucket.listed.life,
        0 if bucket.newest.named is None else bucket.newest.named.life,
    )
    return BucketContent(
        topics.topics,
        None if copy is None else copy.image,
        is_copy_newer,
        bucket.archive.last_producer_id,
        max(lives),
        _why_doubted(bucket, image, metadata, is_copy_newer=is_copy_newer),
        bucket.erasures,
    )


def _why_doubted(
    bucket: BucketContents, image: MetadataImage, metadata: Publisher, *, is_copy_newer: bool
) -> str | None:
    """Return why the cluster may have had other settings at its end than the newest remaining metadata has,
    the copy's or this node's; None without a sign of that."""
    newest, listed = bucket.newest, bucket.listed
    if is_copy_newer and newest.copy is not None:
        if newest.lost is not None:
            return newest.lost
        if listed is None and newest.named is None:
            return "neither cluster.json nor topics.json says whether a newer copy was written"
        known = newest.copy.image
        if (since := _made_since(bucket.archive, known)) is not None:
            return f"{newest.copy.ref.key} does not know topic {since}, which was archived after it was made"
    else:
        if newest.named is None and newest.lost is not None:
            return newest.lost
        if newest.named is not None and not _has(image, newest.named, metadata):
            return f"{newest.named.key} was made of later metadata than this node's"
        known = image
    if listed is not None and (listed.life, listed.metadata_offset) > (known.life, known.offset):
        return f"topics.json was made of later metadata, up to offset {listed.metadata_offset}"
    return None


def _made_since(archive: RecoveredArchive, copy: MetadataImage) -> str | None:
    """Return a topic that is newer than the copy: each new topic is followed by a copy."""
    for (topic_id, _), found in archive.partitions.items():
        is_known = topic_id in copy.topics_by_id or topic_id in copy.tombstones
        if not is_known and found.written_ms > copy.timestamp_ms:
            return f"{found.topic} ({topic_id})"
    return None


def _has(image: MetadataImage, ref: MetadataRef, metadata: Publisher) -> bool:
    """Return whether this node's metadata covers the source of a copy, or is of a later life."""
    if image.life != ref.life:
        return image.life > ref.life
    return metadata.holds(ref.end_offset, ref.epoch)


def _goes_on_from(image: MetadataImage, copy: MetadataImage, metadata: Publisher) -> bool:
    """Return whether this node's metadata log covers the source of `copy`, and so is at least as new.

    A new disk has other directory ids; a restored one has not written the end of the copy in its epoch.
    """
    if image.life != copy.life:
        return image.life > copy.life
    own = {one for broker in image.brokers.values() for one in broker.log_dirs}
    theirs = {one for broker in copy.brokers.values() for one in broker.log_dirs}
    return bool(own & theirs) and metadata.holds(copy.offset + 1, copy.epoch)


def _check_settings(image: MetadataImage, found: BucketContent, config: BrokerConfig, life_id: UUID) -> None:
    frames = adopt(image, found, node_id=config.node_id, life_id=life_id).frames
    delta = MetadataDelta(image).replay_all(frame.record for frame in frames)
    after = delta.build(image.offset + len(frames), image.epoch, image.timestamp_ms)
    try:
        at_once(check_topics(after, dynamic_config(config, after)))
    except ConfigError as e:
        raise ConfigError(
            f"firn.remote.recover: this node cannot serve under the settings that the bucket has, and "
            f"nothing is taken over: {e}"
        ) from e


def _log_adoption(
    bucket: BucketContents, found: BucketContent, adoption: Adoption, image: MetadataImage
) -> None:
    copy = bucket.newest.copy
    for problem in (*bucket.problems, *bucket.archive.problems):
        log.error("firn.remote.recover: document is unreadable or contradicts others: %s", problem)
    for difference in bucket.archive.differences[:_MOST_LOGGED]:
        log.warning("firn.remote.recover: %s", difference)
    if len(bucket.archive.differences) > _MOST_LOGGED:
        log.warning(
            "firn.remote.recover: %d archives in all differ from the copy of the metadata",
            len(bucket.archive.differences),
        )
    for refusal in adoption.refused:
        log.error("firn.remote.recover: not taken over: %s", refusal)
    for name in adoption.removed:
        log.warning(
            "firn.remote.recover: topic %s was deleted, or created again, by the lost node; setting its "
            "local files aside",
            name,
        )
    source = (
        "no copy of the metadata can be read, topics.json stands for it" if copy is None else copy.ref.key
    )
    log.warning(
        "firn.remote.recover: life %d of the cluster begins; %d topics and %d partitions are taken over "
        "from the bucket (%s): %s",
        image.life,
        len(adoption.topics),
        len(adoption.partitions),
        source if found.is_copy_newer or copy is None else "this node's metadata goes on from its copy",
        ", ".join(sorted(adoption.topics)[:_MOST_LOGGED]) or "no topic that was not known",
    )
    log_users(bucket, found, image)
    if found.doubt is not None:
        log.error(
            "firn.remote.recover: the lost node may have had newer settings of topics and brokers than those "
            "recovered, so no topic expires until its retention.ms is set or `firn topic settings-known "
            "TOPIC` is run: %s",
            found.doubt,
        )
    if adoption.settings_unknown:
        log.warning(
            "firn.remote.recover: %d topics with unknown settings do not expire (%s): set retention.ms of "
            "each, or run `firn topic settings-known TOPIC`",
            len(adoption.settings_unknown),
            ", ".join(sorted(adoption.settings_unknown)[:_MOST_LOGGED]),
        )


def log_users(bucket: BucketContents, found: BucketContent, image: MetadataImage) -> None:
    """Log how many users' and brokers' passwords have to be set again, as the bucket does not have them."""
    named = bucket.newest.named
    if named is None or not found.is_copy_newer:
        return
    if named.omitted_settings:
        log.warning(
            "firn.remote.recover: %d settings of brokers were passwords, which are not in the bucket "
            "(firn.remote.metadata.credentials): set them again",
            named.omitted_settings,
        )
    if omitted := named.omitted_users:
        log.warning(
            "firn.remote.recover: %d users had SCRAM credentials, which are not in the bucket "
            "(firn.remote.metadata.credentials); this node's metadata has those of %d, which may be old: set "
            "each user's password again",
            omitted,
            len(image.scram),
        )
