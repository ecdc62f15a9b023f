"""Three nodes over one bucket, and what their metrics say of all of them together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from kio.schema.errors import ErrorCode

from service.cli.dev_nodes import agree_on_ports
from service.console.figures import Figures
from tests.support.quorums import Cluster
from tests.support.stores import Store
from tests.support.wire import RawConnection, schema

REPLICATED: Final = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "100",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
}
_BROKER: Final = 4
"""Type of a broker's settings in IncrementalAlterConfigs."""


@contextmanager
def tiered_cluster(folder: Path, store: Store, settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Have three nodes that replicate all topics and copy them to `store`; not started yet."""
    folder.mkdir(parents=True)
    own = {**REPLICATED, **store.node_settings, **settings}
    ports, _ = agree_on_ports(0, 3, 0)
    with Cluster(folder, settings=own, environ=dict(store.env)) as cluster:
        for member, port in zip(cluster.members.values(), ports, strict=True):
            member.settings |= {**own, "firn.http.listener": f"127.0.0.1:{port}"}
        yield cluster


def summed_figures(cluster: Cluster) -> Figures:
    """Return the metrics of all nodes, each series summed up."""
    found = Figures(time.monotonic(), "", {}, [])
    for member in cluster.members.values():
        with urlopen(f"http://{member.settings['firn.http.listener']}/metrics", timeout=20) as answer:
            one = Figures(found.at_s, answer.read().decode(), {}, [])
        for name, series in one.samples.items():
            sums = found.samples.setdefault(name, {})
            for labels, value in series.items():
                sums[labels] = sums.get(labels, 0.0) + value
    return found


def alter_all_brokers(cluster: Cluster, name: str, value: str) -> None:
    """Set the default of all brokers for a key that can be changed while they run."""
    module = schema(44, 1)
    config = module.AlterableConfig(name=name, config_operation=0, value=value)
    resource = module.AlterConfigsResource(resource_type=_BROKER, resource_name="", configs=(config,))
    request = module.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    with RawConnection(cluster.bootstrap, 60) as connection:
        (answer,) = connection.call(request).responses
    assert answer.error_code == ErrorCode.none, answer
