"""Health checks of a node's parts, for `/readyz`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from service.base.health import Check, HealthState
from service.hot.manager import LogManager
from service.hot.watermarks import Step, describe
from service.metadata.image import MetadataImage
from service.serving.request_host import Broker

if TYPE_CHECKING:
    from service.network.jwks.key_sets import KeySets
    from service.network.tls.node_tls import NodeTls
    from service.node.cold_tier import ColdTier
    from service.tiering.metrics import TieringMetrics

_NAMED_AT_MOST: Final = 5


def checks(
    failure: BaseException | None,
    broker: Broker | None,
    logs: LogManager | None,
    cold: ColdTier | None,
    is_serving: bool,
    tls: NodeTls | None,
    key_sets: KeySets | None = None,
    *,
    is_broker: bool = True,
) -> tuple[Check, ...]:
    """Return the checks of all parts. A part that is None has not started; without `cold` there is no check
    of the store."""
    found = [_node(failure, is_serving)]
    if tls is not None and tls.handshakes is not None:
        found.append(_tls(tls))
    if key_sets is not None:
        found.append(_tokens(key_sets))
    if not is_broker:
        return tuple(found)
    found += [_logs(broker, logs), _disks(broker, logs), _metadata(broker)]
    if cold is not None:
        found.append(_store(cold))
    if broker is not None and broker.image.life:
        found.append(_recovery(broker.image))
    return tuple(found)


def _node(failure: BaseException | None, is_serving: bool) -> Check:
    if failure is not None:
        return Check("node", HealthState.FAILED, f"the node ends: {failure}")
    return (
        Check("node", HealthState.OK)
        if is_serving
        else Check("node", HealthState.FAILED, "the node is starting or stopping")
    )


def _tls(tls: NodeTls) -> Check:
    """Return whether stores that have changed could not be used, and which certificates end soon."""
    from service.security.certificates import ending  # a node without TLS does not load it

    reasons = [f"listener {name} keeps its old certificates: {why}" for name, why in tls.problems.items()]
    for name, days in tls.days_left().items():
        if (words := ending(days)) is not None:
            reasons.append(f"the certificate of listener {name} {words}")
    return Check("tls", HealthState.DEGRADED if reasons else HealthState.OK, "; ".join(reasons))


def _tokens(key_sets: KeySets) -> Check:
    """Return which keys of issuers of tokens are missing or old."""
    reasons = [f"the keys of {place}: {why}" for place, why in key_sets.problems.items()]
    return Check("tokens", HealthState.DEGRADED if reasons else HealthState.OK, "; ".join(reasons))


def _logs(broker: Broker | None, logs: LogManager | None) -> Check:
    if broker is None or logs is None:
        return Check("logs", HealthState.FAILED, "the logs are being opened")
    failed = sum(1 for one in broker.replicas if one.log.failure is not None)
    if offline := failed + broker.replicas.closed_count:
        return Check("logs", HealthState.DEGRADED, f"{offline} partitions are offline")
    return Check("logs", HealthState.OK)


def _disks(broker: Broker | None, logs: LogManager | None) -> Check:
    """Return whether all log directories are online, and how full those are that run out of space."""
    if broker is None or logs is None:
        return Check("disks", HealthState.FAILED, "the log directories are not checked yet")
    standings = broker.disks.standings()
    reasons = [
        f"{path} is {describe(standing)}"
        for path, standing in standings.items()
        if standing.step is not Step.FREE
    ]
    offline = [str(path) for path in broker.config.log_dirs if not logs.is_online(path)]
    is_worse = offline or any(standing.step >= Step.THROTTLE for standing in standings.values())
    reasons += [f"{path} is offline" for path in offline]
    return Check("disks", HealthState.DEGRADED if is_worse else HealthState.OK, "; ".join(reasons))


def _metadata(broker: Broker | None) -> Check:
    if broker is None:
        return Check("metadata", HealthState.FAILED, "the metadata is being read")
    return Check("metadata", HealthState.OK)


def _recovery(image: MetadataImage) -> Check:
    """Return the work that a recovery from the bucket has left: unknown settings, logs not compared yet."""
    waiting = sorted(
        image.topics_by_id[topic_id].name
        for topic_id, state in image.recovered.items()
        if state.settings_unknown
    )
    unchecked = sum(len(state.unchecked_partitions) for state in image.recovered.values())
    reasons = []
    if waiting:
        reasons.append(
            f"nothing expires of {len(waiting)} topics whose settings are not known "
            f"({', '.join(waiting[:_NAMED_AT_MOST])}): firn topic settings-known"
        )
    if unchecked:
        reasons.append(f"{unchecked} local logs were not compared with their archives yet")
    return Check("recovery", HealthState.DEGRADED if reasons else HealthState.OK, "; ".join(reasons))


def _unpublished(metrics: TieringMetrics) -> set[str]:
    """Report the partitions whose committed manifest cannot be published: it is gone, damaged or refused."""
    from service.tiering.tasks import Task  # a node without a store does not load its code

    failing = [(str(tip), why) for (task, tip), why in metrics.failing.items() if task is Task.PUBLISH]
    if not failing:
        return set()
    tip, why = min(failing)
    return {f"nothing is copied of {len(failing)} partitions, {tip} first: {why}"}


def _store(cold: ColdTier) -> Check:
    problems = {
        f"{client}: {why}" for client, one in cold.metrics.items() if (why := one.problem) is not None
    }
    if asleep := cold.reader.stats().downloads.asleep:
        problems.add(
            f"read: {len(asleep)} objects are in an archive class and have to be restored, {asleep[0]} first"
        )
    if cold.tiering is not None:
        problems |= {why for why in (cold.tiering.displaced, cold.tiering.topics_file) if why is not None}
        problems |= _unpublished(cold.tiering)
    if cold.tiering is not None and cold.tiering.waits is not None:
        problems.add(f"nothing is copied, expired or swept {cold.tiering.waits}")
    if problems:
        return Check("store", HealthState.DEGRADED, "; ".join(sorted(problems)))
    if cold.tiering is None:
        return Check("store", HealthState.DEGRADED, "the owner of the prefix is not known yet")
    return Check("store", HealthState.OK)
