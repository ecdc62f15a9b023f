"""A cluster that is not whole: three nodes of which one has died, and a replica that waits for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from service.client.admin import ChangingCluster
from service.client.admin import Cluster as Asked
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync

NODES = (1, 2, 3)
STRICT, EASY, LONE = "payments", "orders", "audit"


class Limping(NamedTuple):
    """`alive` are the addresses of the brokers that live. All in sync was `STRICT` to be, which takes no
    records with acks=all now; two of three do for `EASY`; of `LONE` a second replica is to come to `dead`.
    """

    cluster: Cluster
    dead: int
    alive: str


@contextlib.contextmanager
def limping(folder: Path) -> Iterator[Limping]:
    with Cluster(folder / "nodes", settings=BRISK) as cluster:
        for node, member in cluster.members.items():
            member.settings["broker.rack"] = f"zone-{'abc'[node - 1]}"
        cluster.start()
        dead = next(node for node in NODES if node != cluster.leader())
        admin = Admin(cluster.bootstrap)
        admin.replicate(STRICT, 3, 3, min_insync_replicas="3")
        admin.replicate(EASY, 6, 3, min_insync_replicas="2")
        for topic in (STRICT, EASY):
            wait_in_sync(cluster, topic)
        cluster.members[dead].kill()
        alive = ",".join(cluster.members[node].bootstrap for node in NODES if node != dead)

        def is_fenced() -> bool:
            with Asked(alive) as asked:
                return any(one.is_fenced for one in asked.describe().nodes)

        wait_until("it is fenced", is_fenced, 60)
        Admin(alive).replicate(LONE, 1, 1)
        wait_in_sync(cluster, LONE)
        with ChangingCluster(alive) as changing:
            ((leader,),) = (one.replicas for one in changing.partitions(LONE, 0, 1).topic.partitions)
            assert changing.reassign({(LONE, 0): (leader, dead)}) == {}
        yield Limping(cluster, dead, alive)
