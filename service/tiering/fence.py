"""Who may write to a prefix: `cluster.json` names the process that keeps it, and those that write beside it.

The keeper takes the prefix over when it starts, or follows another, after it found that its metadata is not
older than the bucket. The other brokers of its cluster may write once they know it and it has named them:
by that each of the two says that its metadata has the other's start. Whoever was in and finds a process there
that its metadata has never had stops for good: two nodes, or two clusters, with one past (cloned disks) would
each take the other's objects for garbage. What one of them was doing at that moment is harmless: every HEAD
is written conditionally, and deletions look here first.

A `cluster.json` that is damaged says nothing about who writes. Where it is what this process wrote but for a
few bytes, it is written again; otherwise it is left for `firn repair`, and nothing is written or deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError, StorageError, UnknownVersion
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
from service.tiering.offload import OffloadPool
from service.tiering.ports import House
from service.tiering.shared_objects import StoredTopics

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_REMEMBERED: Final = 4
"""One write may be under way while another is looked at, and each may have to be sent again."""


class Displaced(StorageError):
    """Another process has taken the prefix over. It never comes back to this one."""


class ForeignOwner(Displaced):
    """`cluster.json` is another cluster's."""


class NotNamed(StorageError):
    """Not this process's turn: it does not keep the prefix, or is not named yet by the one that does."""


def read_cluster(store: ObjectStore) -> ClusterFile:
    """`cluster.json`; `ObjectNotFound`, `CorruptionError`."""
    return _decode(store.get_tagged(CLUSTER_KEY, max_size=MAX_SMALL_BYTES))


class OwnWrites:
    """The newest few `cluster.json` that this process wrote or tried to write. Safe from any thread."""

    def __init__(self) -> None:
        self._written: deque[ClusterFile] = deque(maxlen=_REMEMBERED)

    def add(self, cluster: ClusterFile) -> None:
        self._written.append(cluster)

    def before_damage(self, found: bytes) -> ClusterFile | None:
        """What was written where `found` is now, None where that is not surely ours."""
        ours = (one for one in tuple(self._written) if is_damage_of(found, encode_cluster(one)))
        return next(ours, None)


def claim_prefix(store: ObjectStore, cluster_id: str) -> None:
    """Make the prefix this cluster's, or find that it is; who writes to it is not changed.

    `ForeignOwner` when it belongs to another cluster; `CorruptionError` when it does not say whose it is, or
    its layout is one that we do not know; `StorageError` when the store does not answer. Two clusters that
    claim an empty prefix at once cannot both win. A claim of this cluster that was damaged on its way, before
    anybody took the prefix over, is made again.
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
    """Replace `cluster.json` by what `change` makes of it, and nothing that was written meanwhile.

    What is damaged and is one of `own` counts as it was. Raises as `claim_prefix`, and what `change` raises.
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
    raise StoreUnavailable(f"{CLUSTER_KEY} is written by others again and again")


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
    """Name the writer of `stamp` in `cluster.json`, whoever was named before, and who may write beside it.

    `after`: nobody may have taken it over since that was read, nor renewed it unless it `may_be_renewed`:
    `StoreUnavailable`. Otherwise raises as `claim_prefix`.
    """

    def change(old: ClusterFile) -> ClusterFile:
        found = incarnation_of(old)
        is_same = after is None or found in (incarnation_of(after), stamp.writer.incarnation)
        if not is_same or (after is not None and not may_be_renewed and old.renewals != after.renewals):
            raise StoreUnavailable(f"{CLUSTER_KEY} was taken over by somebody else at the same moment")
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
        before = own.before_damage(seen.data)
        if before is None:
            raise
        log.warning("%s; it is what this process wrote with a few bytes changed, and is written again", e)
        return before


def _check_owner(cluster: ClusterFile, cluster_id: str) -> None:
    if cluster.cluster_id != cluster_id:
        raise ForeignOwner(
            f"firn.remote.url: the prefix belongs to cluster {cluster.cluster_id}, this node's is "
            f"{cluster_id}; give each cluster a prefix of its own"
        )


def incarnation_of(cluster: ClusterFile) -> UUID | None:
    """The process that `cluster.json` names as the prefix's keeper."""
    return cluster.stamp.writer.incarnation if cluster.stamp is not None else None


class Fence:
    """Whether this process may write, and whether it keeps the prefix. Owned by the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        writer: Writer,
        clock: Clock,
        pool: OffloadPool,
        house: House,
        *,
        is_conditional: bool,
    ) -> None:
        self.is_conditional = is_conditional
        self.displaced: str | None = None
        """why this process writes no more"""
        self._store = store
        self._cluster_id = cluster_id
        self._writer = writer
        self._clock = clock
        self._pool = pool
        self._house = house
        self._stored_topics = StoredTopics(store, cluster_id)
        self._may_write = self._is_named = self._was_in = self._gave_up = False
        self.unclaimed: str | None = None
        """why nobody knows yet whether the prefix is this cluster's and how its store writes"""
        self._members: tuple[UUID, ...] = ()
        self._looked_ms = 0
        self.own = OwnWrites()

    @property
    def may_write(self) -> bool:
        """Whether this process was in when it last looked: it has the prefix, or is named by who has."""
        return self._may_write and self.displaced is None

    @property
    def is_ours(self) -> bool:
        """Whether this process keeps the prefix: it took it over, nobody is known to have done so since, and
        by the image it is unfenced."""
        return self._is_named and self.displaced is None and self._house.is_unfenced()

    @property
    def lacks_members(self) -> bool:
        """Whether brokers came or went since `cluster.json` was written by this process."""
        return self.is_ours and self._members != self._house.members()

    def _members_now(self) -> tuple[UUID, ...]:
        members = self._house.members()
        if len(members) > MAX_MEMBERS:
            raise StorageError(f"{len(members)} brokers cannot share a prefix, at most {MAX_MEMBERS} can")
        return members

    async def read(self) -> ClusterFile:
        """`cluster.json`, written again where it is ours and damaged."""
        return await self._pool.run(self._read)

    async def read_or_none(self) -> ClusterFile:
        """As `read`; one that names nobody where there is none, and this process has not seen one."""
        try:
            return await self.read()
        except ObjectNotFound:
            if self._was_in:
                raise
            return ClusterFile(self._cluster_id)

    def is_foreign(self, cluster: ClusterFile) -> bool:
        """Whether the file is another cluster's."""
        return cluster.cluster_id != self._cluster_id

    async def sign_in(self) -> None:
        """Have `cluster.json` say that this process uses the prefix."""
        own = self._writer.incarnation

        def change(old: ClusterFile) -> ClusterFile:
            return old if own in old.present else old._replace(present=(*old.present, own)[-MAX_PRESENT:])

        await self._update(change)

    async def _update(self, change: Callable[[ClusterFile], ClusterFile]) -> None:
        """Change `cluster.json`, as `update_cluster`."""
        await self._pool.run(
            update_cluster,
            self._store,
            self._cluster_id,
            change,
            self.own,
            is_conditional=self.is_conditional,
        )

    def give_up(self) -> None:
        """Keep the prefix no more, and write nothing until it is known whose it is."""
        self._is_named = self._may_write = False
        self._gave_up = True

    def is_successor(self, cluster: ClusterFile) -> bool:
        """Whether this process may follow the one that `cluster` names without another look at the bucket: it
        is that one, or one that we know and that knew us, so that our metadata is of one past."""
        found = incarnation_of(cluster)
        if found is None or found == self._writer.incarnation:
            return found is not None and not self._gave_up
        return self._house.knows(found) and self._writer.incarnation in cluster.members

    async def take_over(self, after: ClusterFile | None = None) -> None:
        """Become the keeper. As the function of that name."""
        if self.unclaimed is not None:
            raise NotNamed(self.unclaimed)
        if self.displaced is not None:
            raise Displaced(self.displaced)
        members = self._members_now()
        await self._pool.run(
            take_over,
            self._store,
            self._cluster_id,
            Stamp(self._clock.now_ms(), self._writer),
            self.own,
            is_conditional=self.is_conditional,
            members=members,
            after=after,
            may_be_renewed=self._house.is_keeper(),
        )
        self._members = members
        self._is_named = self._may_write = self._was_in = True
        self._gave_up = False
        self._looked_ms = self._clock.monotonic_ms()

    async def renew(self) -> None:
        """Have `cluster.json` say once more that this process keeps the prefix, and name the brokers that
        there are now. `NotNamed` where it does not keep it any more."""
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
        """`Displaced` when a process that is none of our brokers has the prefix; `NotNamed` where ours do not
        let this one write; what was seen `max_age_ms` ago counts.

        Raises what the store and the house raise: then nobody knows, and nothing may be written or deleted.
        """
        if self.displaced is not None:
            raise Displaced(self.displaced)
        if not self._may_write:
            raise NotNamed("the prefix was not taken over yet")
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < max_age_ms:
            return
        await self.look()
        self._looked_ms = now_ms

    async def look(self) -> None:
        """As `check`, also for a process that is not in yet, or was displaced: its cluster may be back."""
        await self.judge(await self.read())

    async def judge(self, cluster: ClusterFile) -> None:
        """As `look`, of what was read."""
        if self.unclaimed is not None:
            raise NotNamed(self.unclaimed)
        if self.is_foreign(cluster):
            self._foreign(cluster)
        found = incarnation_of(cluster)
        if found == self._writer.incarnation:
            if self._gave_up:
                raise NotNamed("this broker has given the prefix up")
            # also where the answer to taking it over was lost, and where another cluster's file was here
            self._is_named = self._may_write = self._was_in = True
            self.displaced = None
            return
        self._is_named = False
        if found is None or not self._house.knows(found):
            if self._was_in:
                await self._house.barrier()
            if found is None or not self._house.knows(found):
                self._stranger(found)
        self._may_write = self._writer.incarnation in cluster.members
        if not self._may_write:
            raise NotNamed("the broker that keeps the prefix has not named this one yet")
        self._was_in, self._gave_up, self.displaced = True, False, None

    def _stranger(self, found: UUID | None) -> NoReturn:
        """Who was in stops; who was not goes on waiting."""
        self._may_write = False
        if not self._was_in:
            who = "nobody has it" if found is None else f"a process that is not known ({found}) has it"
            raise NotNamed(f"the prefix was not taken over yet: {who}")
        self.displaced = (
            f"another process ({found}) has taken over the prefix that this one "
            f"({self._writer.incarnation}) wrote to: two nodes on one prefix; "
            "this one copies, expires and sweeps no more"
        )
        raise Displaced(self.displaced)

    def _foreign(self, cluster: ClusterFile) -> NoReturn:
        """Nothing is written to a prefix of another cluster, and nobody ends for that."""
        why = (
            f"{CLUSTER_KEY} in the prefix of firn.remote.url is of cluster {cluster.cluster_id}, this node's "
            f"is {self._cluster_id}: this node copies, expires and sweeps nothing until its own is back"
        )
        self._may_write = self._is_named = False
        if not self._was_in:
            raise NotNamed(why)
        self.displaced = why
        raise ForeignOwner(why)

    async def check_keeper(self) -> None:
        """As `check`, and `NotNamed` unless this process keeps the prefix."""
        await self.check()
        if not self.is_ours:
            raise NotNamed("this broker does not keep the prefix")

    async def before_erasing(self) -> None:
        """Before objects are deleted that this process knows to be dead: its image is made as new as the
        metadata, and a broker that is fenced deletes nothing. Raises as `check`."""
        await self._house.barrier()
        if not self._house.is_unfenced():
            raise NotNamed("this broker is fenced")
        await self.check()

    async def before_housekeeping(self) -> None:
        """Before objects are looked for that are dead. Raises as `check_keeper`, and `StorageError` where
        `topics.json` is of later metadata than ours."""
        offset = await self._house.barrier()
        await self.check_keeper()
        if self._house.members():
            why = await self._pool.run(self._stored_topics.why_ahead, self._house.life(), offset)
            if why is not None:
                raise StorageError(f"nothing is swept: topics.json: {why}")

    def _read(self) -> ClusterFile:
        """On an offload thread."""
        try:
            return read_cluster(self._store)
        except UnknownVersion:
            raise
        except CorruptionError:
            update_cluster(
                self._store, self._cluster_id, lambda old: old, self.own, is_conditional=self.is_conditional
            )
            return read_cluster(self._store)
