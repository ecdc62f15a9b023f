"""Tier that each offset of a topic is served from: `firn consume --tier`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

from service.cli.client_properties import security_of_args

LOCAL: Final = "local"
REMOTE: Final = "remote"
_EVERY_S: Final = 5.0


class TierBorders:
    """First local offset of each partition, asked for again every few seconds: it moves up."""

    def __init__(self, args: argparse.Namespace, topic: str, partitions: Sequence[int]) -> None:
        self._bootstrap, self._security = args.bootstrap_server, security_of_args(args)
        self._topic, self._partitions = topic, partitions
        self._borders: dict[int, int] = {}
        self._asked_at = 0.0

    def tier_of(self, partition: int, offset: int) -> str:
        """Return `REMOTE` for an offset below the partition's first local one, else `LOCAL`.

        Raises `FirnError` where no broker answers.
        """
        now = time.monotonic()
        if not self._borders or now - self._asked_at > _EVERY_S:
            self._borders, self._asked_at = self._ask(), now
        return REMOTE if offset < self._borders.get(partition, 0) else LOCAL

    def _ask(self) -> dict[int, int]:
        from service.client.admin import EARLIEST_LOCAL, Cluster

        with Cluster(self._bootstrap, security=self._security) as cluster:
            (topic,) = cluster.topics([self._topic])
            leaders = {one.partition: one.leader for one in topic.partitions}
            return dict(cluster.offsets(self._topic, leaders, EARLIEST_LOCAL))
