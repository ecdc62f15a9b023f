"""State of a restored cluster, as its brokers tell it: what is still loading, and what cannot be loaded."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import NamedTuple

from service.client.admin import Cluster
from service.client.broker_health_queries import ask_answers
from service.health.kinds import TAIL_NOT_LOADED, TAILS_LOADING, TIERING_HELD_BACK


class RestoreStatus(NamedTuple):
    """Lines of what loads, of what cannot be loaded, and of brokers that do not tell. `brokers`: how many
    told. `notes`: what keeps brokers from the bucket, as where they were formatted without the file."""

    brokers: int
    loading: tuple[str, ...]
    failed: tuple[str, ...]
    silent: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_served(self) -> bool:
        """True where a broker answers, and all that answer have nothing left to load."""
        return bool(self.brokers) and not (self.loading or self.failed or self.silent)


def restore_status(cluster: Cluster, pool: Executor) -> RestoreStatus:
    """Ask all brokers that serve. Raises `RequestError`, `StorageError` and `OSError` where none does."""
    loading: dict[str, None] = {}
    failed: list[str] = []
    silent: list[str] = []
    notes: list[str] = []
    told = 0
    for answer in ask_answers(cluster, pool):
        why = answer.silence or answer.refusal
        if why is not None:
            silent.append(f"broker {answer.node_id} does not tell: {why}")
            continue
        told += 1
        for finding in answer.told:
            if finding.anchor == TAILS_LOADING.anchor:
                loading[finding.words] = None
            elif finding.anchor == TAIL_NOT_LOADED.anchor:
                failed.append(finding.words)
            elif finding.anchor == TIERING_HELD_BACK.anchor:
                notes.append(finding.words)
    if not told and not silent:
        silent.append("no broker serves yet")
    return RestoreStatus(told, tuple(loading), tuple(failed), tuple(silent), tuple(notes))
