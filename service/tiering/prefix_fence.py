"""Fence of a prefix: `cluster.json` names the keeper, and the processes that may write beside it.

The keeper takes the prefix over when it starts, or follows another keeper, after it found that its metadata
is not older than the bucket. The other brokers of its cluster may write once they know the keeper's
incarnation and it has named theirs: so each of the two has the other's start in its metadata. A process that
could write and then finds a keeper that its metadata never had stops for good: two nodes, or two clusters,
with one past (cloned disks) would each take the other's objects for garbage. Work in flight at that moment is
harmless: every HEAD is written conditionally, and deletions check the fence first.

A damaged `cluster.json` does not tell who may write. Where it is what this process wrote except for a few
bytes, it is rewritten; otherwise it is left for `firn repair`, and nothing is written or deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError, StorageError, UnknownVersion
from service.remote.format.ancestors import Ancestor
from service.remote.format.documents import is_damage_of
from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import (
    MAX_MEMBERS,
    MAX_PRESENT,
    MAX_SMALL_BYTES,
    ClusterFile,
    decode_cluster,
    encode_cluster,
)
from service.remote.format.stamp import Stamp, Writer
from service.remote.stores import conditional
from service.remote.stores.errors import ObjectNotFound, StoreUnavailable, naming
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.offload_pool import OffloadPool
from service.tiering.ports import PrefixOwner
from service.tiering.shared_objects import StoredTopics

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_REMEMBERED: Final = 4
"""One write may be in flight while another is checked, and each may have to be sent again."""


class Displaced(StorageError):
    """Another process has taken the prefix over. The prefix never returns to this one."""


class ForeignOwner(Displaced):
    """`cluster.json` is another cluster's."""


class HeirFound(ForeignOwner):
    """`cluster.json` is that of a cluster which was restored from this one, and has taken its prefix over."""

    def __init__(self, heir: str, cluster_id: str) -> None:
        super().__init__(
            f"the prefix of firn.remote.url was taken over by cluster {heir}, which was restored from this "
            f"one, {cluster_id}: this node copies, cuts, expires and sweeps nothing more"
        )
        self.heir = heir


class NotNamed(StorageError):
    """Raised where this process may not act now: it is not the keeper, or the keeper has not named it yet."""


def read_cluster(store: ObjectStore) -> ClusterFile:
    """Return `cluster.json`. Raises `ObjectNotFound`, `CorruptionError`."""
    return _decode(store.get_tagged(CLUSTER_KEY, max_size=MAX_SMALL_BYTES))


class OwnWrites:
    """The last few `cluster.json` that this process wrote or tried to write. Safe from any thread."""

    def __init__(self) -> None:
        self._written: deque[ClusterFile] = deque(maxlen=_REMEMBERED)

    def add(self, cluster: ClusterFile) -> None:
        self._written.append(cluster)

    def original_of(self, found: bytes) -> ClusterFile | None:
        """Return our write of which `found` is a damaged copy; None where there is none."""
        ours = (one for one in tuple(self._written) if is_damage_of(found, encode_cluster(one)))
        return next(ours, None)


def claim_prefix(store: ObjectStore, cluster_id: str) -> None:
    """Make the prefix this cluster's, or check that it is; its writers do not change.

    Raises `ForeignOwner` when it belongs to another cluster, `CorruptionError` when it does not tell its
    owner or has an unknown layout, `StorageError` when the store does not answer. Of two clusters that claim
    an empty prefix at once only one wins. A claim of this cluster that was damaged on its way, before any
    process took the prefix over, is rewritten.
    """
    first, own = ClusterFile(cluster_id), OwnWrites()
    if conditional.create(store, CLUSTER_KEY, encode_cluster(first)):
        return
    own.add(first)
    try:
        _check_owner(read_cluster(store), cluster_id)
    except UnknownVersion:
        raise
    except CorruptionError:
        update_cluster(store, cluster_id, lambda old: old, own)


def update_cluster(
    store: ObjectStore,
    cluster_id: str,
    change: Callable[[ClusterFile], ClusterFile],
    own: OwnWrites,
    *,
    is_conditional: bool = True,
) -> None:
    """Replace `cluster.json` by `change` of it, and never what was written meanwhile.

    A damaged file that is one of `own` counts as its original. Raises as `claim_prefix`, and what `change`
    raises.
    """
    for _ in range(_ATTEMPTS):
        seen = conditional.tagged_or_none(store, CLUSTER_KEY, max_size=MAX_SMALL_BYTES)
        cluster = _decode_or_own(seen, own) if seen is not None else ClusterFile(cluster_id)
        _check_owner(cluster, cluster_id)
        changed = change(cluster)
        data = encode_cluster(changed)
        own.add(changed)
        if not is_conditional:
            store.put(CLUSTER_KEY, data)
            return
        if conditional.write(store, CLUSTER_KEY, data, seen):
            return
    raise StoreUnavailable(f"{CLUSTER_KEY} was written by other processes at each of {_ATTEMPTS} attempts")


def take_over(
    store: ObjectStore,
    cluster_id: str,
    stamp: Stamp,
    own: OwnWrites,
    *,
    is_conditional: bool = True,
    members: tuple[UUID, ...] = (),
    after: ClusterFile | None = None,
    may_be_renewed: bool = True,
) -> None:
    """Name the writer of `stamp` as keeper in `cluster.json`, and the brokers that may write beside it.

    `after`: fail where another process has taken the prefix over since that was read, or has renewed it
    unless it `may_be_renewed`. Raises `StoreUnavailable` then; otherwise raises as `claim_prefix`.
    """

    def change(old: ClusterFile) -> ClusterFile:
        found = incarnation_of(old)
        is_same = after is None or found in (incarnation_of(after), stamp.writer.incarnation)
        if not is_same or (after is not None and not may_be_renewed and old.renewals != after.renewals):
            raise StoreUnavailable(f"{CLUSTER_KEY} was taken over by another process at the same moment")
        return old._replace(
            stamp=stamp,
            members=members,
            present=_still_present(old, members),
            renewals=old.renewals + 1 if members else 0,
        )

    update_cluster(store, cluster_id, change, own, is_conditional=is_conditional)


def _still_present(cluster: ClusterFile, members: tuple[UUID, ...]) -> tuple[UUID, ...]:
    return tuple(one for one in cluster.present if one in members)[-MAX_PRESENT:]


def _decode(seen: Tagged) -> ClusterFile:
    try:
        with naming(CLUSTER_KEY):
            return decode_cluster(seen.data)
    except UnknownVersion:
        raise
    except CorruptionError as e:
        raise CorruptionError(
            f"{e}: it does not say whose prefix this is and who writes (firn repair)"
        ) from e


def _decode_or_own(seen: Tagged, own: OwnWrites) -> ClusterFile:
    try:
        return _decode(seen)
    except CorruptionError as e:
        before = own.original_of(seen.data)
        if before is None:
            raise
        log.warning("%s; this process wrote it, and a few bytes have changed since: rewriting it", e)
        return before


def _check_owner(cluster: ClusterFile, cluster_id: str) -> None:
    if cluster.cluster_id != cluster_id:
        if is_heir(cluster, cluster_id):
            raise HeirFound(cluster.cluster_id, cluster_id)
        raise ForeignOwner(
            f"firn.remote.url: the prefix belongs to cluster {cluster.cluster_id}, this node's is "
            f"{cluster_id}; give each cluster a prefix of its own"
        )


def is_heir(cluster: ClusterFile, cluster_id: str) -> bool:
    """Return whether the prefix's cluster was restored from the cluster `cluster_id`."""
    return any(one.cluster_id == cluster_id for one in cluster.ancestors)


def incarnation_of(cluster: ClusterFile) -> UUID | None:
    """Return the incarnation of the keeper that `cluster.json` names."""
    return cluster.stamp.writer.incarnation if cluster.stamp is not None else None


class Fence:
    """Tells whether this process may write, and whether it is the keeper. Owned by the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        writer: Writer,
        clock: Clock,
        pool: OffloadPool,
        owner: PrefixOwner,
        *,
        is_conditional: bool,
    ) -> None:
        self.is_conditional = is_conditional
        self.displaced: str | None = None
        """why this process does not write any more"""
        self._store = store
        self._cluster_id = cluster_id
        self._writer = writer
        self._clock = clock
        self._pool = pool
        self._owner = owner
        self._stored_topics = StoredTopics(store, cluster_id)
        self._may_write = self._is_named = self._was_allowed = self._has_given_up = False
        self.unclaimed: str | None = None
        """why the owner of the prefix, and how its store writes, are not known yet"""
        self._members: tuple[UUID, ...] = ()
        self.keeper: UUID | None = None
        """incarnation of the keeper, by `cluster.json` when this process last read or wrote it"""
        self._checked_ms = 0
        self.own = OwnWrites()
        self.ancestors: tuple[Ancestor, ...] = ()
        """clusters that this one was restored from, as last read"""
        self.heir: str | None = None
        """cluster that was restored from this one, and has the prefix"""
        self.heir_changed: Callable[[str | None], None] = lambda heir: None

    @property
    def may_write(self) -> bool:
        """True while this process was the keeper, or named by it, at the last check."""
        return self._may_write and self.displaced is None

    @property
    def is_ours(self) -> bool:
        """True while this process is the keeper: it took the prefix over, no other is known to have done so
        since, and it is unfenced by the image."""
        return self._is_named and self.displaced is None and self._owner.is_unfenced()

    @property
    def lacks_members(self) -> bool:
        """True where the registered brokers have changed since this process wrote `cluster.json`."""
        return self.is_ours and self._members != self._owner.members()

    def _members_now(self) -> tuple[UUID, ...]:
        members = self._owner.members()
        if len(members) > MAX_MEMBERS:
            raise StorageError(f"{len(members)} brokers cannot share a prefix, at most {MAX_MEMBERS} can")
        return members

    async def read(self) -> ClusterFile:
        """Return `cluster.json`, rewritten where it is ours and damaged."""
        return await self._pool.run(self._read)

    async def read_or_none(self) -> ClusterFile:
        """Return `cluster.json` as `read` does; an empty one where there is none and this process was never
        allowed to write."""
        try:
            return await self.read()
        except ObjectNotFound:
            if self._was_allowed:
                raise
            return ClusterFile(self._cluster_id)

    def is_foreign(self, cluster: ClusterFile) -> bool:
        """Return whether the file is another cluster's."""
        return cluster.cluster_id != self._cluster_id

    async def sign_in(self) -> None:
        """Add this process to those that use the prefix, in `cluster.json`."""
        own = self._writer.incarnation

        def change(old: ClusterFile) -> ClusterFile:
            return old if own in old.present else old._replace(present=(*old.present, own)[-MAX_PRESENT:])

        await self._update(change)

    async def _update(self, change: Callable[[ClusterFile], ClusterFile]) -> None:
        """Change `cluster.json`, as `update_cluster`."""
        try:
            await self._pool.run(
                update_cluster,
                self._store,
                self._cluster_id,
                change,
                self.own,
                is_conditional=self.is_conditional,
            )
        except ForeignOwner:
            await self.refresh()  # tells whose it is, and stops this process
            raise

    def give_up(self) -> None:
        """Stop being the keeper, and write nothing until the owner of the prefix is known."""
        self._is_named = self._may_write = False
        self._has_given_up = True

    def is_successor(self, cluster: ClusterFile) -> bool:
        """Return whether this process may follow the keeper in `cluster` without another check of the bucket.

        It may where it is that keeper, or where each of the two knows the other: then their metadata has one
        past.
        """
        found = incarnation_of(cluster)
        if found is None or found == self._writer.incarnation:
            return found is not None and not self._has_given_up
        return self._owner.knows(found) and self._writer.incarnation in cluster.members

    async def take_over(self, after: ClusterFile | None = None) -> None:
        """Become the keeper, as the function `take_over`."""
        if self.unclaimed is not None:
            raise NotNamed(self.unclaimed)
        if self.displaced is not None:
            raise Displaced(self.displaced)
        members = self._members_now()
        began_ms = self._clock.monotonic_ms()
        await self._pool.run(
            take_over,
            self._store,
            self._cluster_id,
            Stamp(self._clock.now_ms(), self._writer),
            self.own,
            is_conditional=self.is_conditional,
            members=members,
            after=after,
            may_be_renewed=self._owner.is_keeper(),
        )
        self._members = members
        self.keeper = self._writer.incarnation
        self._is_named = self._may_write = self._was_allowed = True
        self._has_given_up = False
        self._checked_ms = began_ms

    async def renew(self) -> None:
        """Increment the keeper's counter in `cluster.json`, and name the brokers registered now.

        Raises `NotNamed` where this process is not the keeper any more.
        """
        members = self._members_now()

        def change(old: ClusterFile) -> ClusterFile:
            if incarnation_of(old) != self._writer.incarnation:
                raise NotNamed(f"{CLUSTER_KEY} names another keeper")
            present = _still_present(old, members)
            return old._replace(members=members, present=present, renewals=old.renewals + 1)

        try:
            await self._update(change)
        except NotNamed:
            await self.check()
            raise
        self._members = members

    async def check(self, max_age_ms: int = 0) -> None:
        """Raise unless this process may write; a check at most `max_age_ms` old suffices.

        Raises `Displaced` when a process that is not a broker of ours has the prefix, `NotNamed` where ours
        have not named this one, and what the store and the barrier raise: then nothing may be written or
        deleted.
        """
        if self.displaced is not None:
            raise Displaced(self.displaced)
        if not self._may_write:
            raise NotNamed("the prefix was not taken over yet")
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._checked_ms < max_age_ms:
            return
        await self.refresh()
        self._checked_ms = now_ms

    async def refresh(self) -> None:
        """Read `cluster.json` and apply it; also for a process that may not write yet, or was displaced: its
        cluster may be back."""
        await self.apply(await self.read())

    async def apply(self, cluster: ClusterFile) -> None:
        """Set what this process may do by `cluster` (invariant T15). Raises as `check`."""
        if self.unclaimed is not None:
            raise NotNamed(self.unclaimed)
        if self.is_foreign(cluster):
            self._reject_foreign(cluster)
        self._set_heir(None)
        self.ancestors = cluster.ancestors
        self.keeper = found = incarnation_of(cluster)
        if found == self._writer.incarnation:
            if self._has_given_up:
                raise NotNamed("this broker has given the prefix up")
            # also where the answer to the take-over was lost, and where another cluster's file was here
            self._is_named = self._may_write = self._was_allowed = True
            self.displaced = None
            return
        self._is_named = False
        if found is None or not self._owner.knows(found):
            if self._was_allowed:
                await self._owner.barrier()
            if found is None or not self._owner.knows(found):
                self._reject_unknown(found)
        self._may_write = self._writer.incarnation in cluster.members
        if not self._may_write:
            raise NotNamed("the broker that keeps the prefix has not named this one yet")
        self._was_allowed, self._has_given_up, self.displaced = True, False, None

    def _reject_unknown(self, found: UUID | None) -> NoReturn:
        """Raise: a process that could write is displaced for good; another one keeps waiting."""
        self._may_write = False
        if not self._was_allowed:
            who = "it has no keeper" if found is None else f"an unknown process ({found}) keeps it"
            raise NotNamed(f"the prefix was not taken over yet: {who}")
        self.displaced = (
            f"another process ({found}) has taken over the prefix that this one "
            f"({self._writer.incarnation}) wrote to: two nodes on one prefix; "
            "this one copies, expires and sweeps no more"
        )
        raise Displaced(self.displaced)

    def _reject_foreign(self, cluster: ClusterFile) -> NoReturn:
        """Raise: nothing is written to another cluster's prefix, and the node keeps running."""
        self._may_write = self._is_named = False
        if is_heir(cluster, self._cluster_id):
            error = HeirFound(cluster.cluster_id, self._cluster_id)
            self._set_heir(error.heir)
            self.displaced = str(error)
            raise error
        why = (
            f"{CLUSTER_KEY} in the prefix of firn.remote.url is of cluster {cluster.cluster_id}, this node's "
            f"is {self._cluster_id}: this node copies, expires and sweeps nothing until its own is back"
        )
        if not self._was_allowed:
            raise NotNamed(why)
        self.displaced = why
        raise ForeignOwner(why)

    def _set_heir(self, heir: str | None) -> None:
        if heir != self.heir:
            self.heir = heir
            self.heir_changed(heir)

    async def check_keeper(self) -> None:
        """Raise as `check`, and `NotNamed` unless this process is the keeper."""
        await self.check()
        if not self.is_ours:
            raise NotNamed("this broker is not the prefix's keeper")

    async def check_before_delete(self) -> None:
        """Raise unless this process may delete its own dead objects. Raises as `check`.

        It passes a barrier first, so that its image is as new as the metadata; a fenced broker deletes
        nothing.
        """
        await self._owner.barrier()
        if not self._owner.is_unfenced():
            raise NotNamed("this broker is fenced")
        await self.check()

    async def check_before_sweep(self) -> None:
        """Raise unless this process may search for dead objects.

        Raises as `check_keeper`, and `StorageError` where `topics.json` is of later metadata than ours.
        """
        offset = await self._owner.barrier()
        await self.check_keeper()
        if self._owner.members():
            why = await self._pool.run(
                self._stored_topics.why_ahead, self._owner.life(), offset, self.ancestors
            )
            if why is not None:
                raise StorageError(f"nothing is swept: topics.json: {why}")

    def _read(self) -> ClusterFile:
        """Read `cluster.json`, and rewrite it where it is ours and damaged. Runs on an offload thread."""
        try:
            return read_cluster(self._store)
        except UnknownVersion:
            raise
        except CorruptionError:
            update_cluster(
                self._store, self._cluster_id, lambda old: old, self.own, is_conditional=self.is_conditional
            )
            return read_cluster(self._store)
