"""Requests to each broker for its health: its own findings, its settings, its HTTP listener. Blocking.

A broker that cannot be reached is an answer, too. Brokers are asked at the same time, each on a connection of
its own, so that one that hangs delays no other.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from http.client import HTTPException
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.addresses import is_loopback
from service.base.errors import FirnError
from service.client.admin import BROKER_RESOURCE, Cluster, describe_through, raise_for
from service.client.admin_models import ClusterInfo, NodeInfo
from service.client.blocking_client import BlockingClient
from service.client.node_http import HTTP_KEYS, NodeHttp, http_url
from service.health import kinds
from service.health.facts import (
    BrokerFacts,
    ClusterFacts,
    DirectoryFacts,
    ListenerFacts,
    UnansweredFacts,
    ViewFacts,
)
from service.health.findings import MOST_TOLD, Finding, from_json
from service.wire.api import ApiKey, request_module
from service.wire.health import DescribeHealthRequest, ToldFinding

URL_KEY: Final = "firn.remote.url"
WAIT_S: Final = 3.0
"""Time-out of requests to one broker: it may hang."""
_MOST_BYTES: Final = 1 << 16
_OF_THE_CLUSTER: Final = frozenset(
    one.anchor
    for one in (
        kinds.BROKER_DOWN, kinds.PARTITIONS_OFFLINE, kinds.UNDER_MIN_ISR, kinds.UNDER_REPLICATED,
        kinds.VOTER_SILENT,
    )
)  # fmt: skip
"""Findings of brokers that a client makes by itself, from all of them."""


class BrokerAnswer(NamedTuple):
    """Answer of one broker. `silence`: why there is none; `view` None: it tells nothing of its health;
    `listener`: its HTTP listener, if it was asked and does not answer; `refusal`: why a question was
    refused; `cluster`: the cluster as it knows it, if it was asked."""

    node_id: int
    silence: str | None = None
    view: ViewFacts | None = None
    told: tuple[Finding, ...] = ()
    directories: tuple[DirectoryFacts, ...] = ()
    settings: Mapping[str, str | None] = {}
    listener: ListenerFacts | None = None
    is_listening: bool = False
    refusal: str | None = None
    cluster: ClusterInfo | None = None


def ask_view(client: BlockingClient) -> ViewFacts | None:
    """Return the age of the metadata of the node that `client` is connected to; None if it tells none."""
    if not client.serves(ApiKey.DESCRIBE_HEALTH):
        return None
    return _health(client)[0]


def ask_answers(cluster: Cluster, pool: Executor) -> tuple[BrokerAnswer, ...]:
    """Ask all unfenced brokers at the same time, without their HTTP listeners."""
    asked = [one for one in cluster.describe().nodes if not one.is_fenced]
    return tuple(pool.map(lambda one: ask_broker(cluster, one, None), asked))


def ask_broker(cluster: Cluster, broker: NodeInfo, http: NodeHttp | None) -> BrokerAnswer:
    """Ask one broker, on a connection of its own."""
    found = ask_apart(lambda: cluster.apart(broker.node_id, WAIT_S), broker)
    return found if http is None or not found.settings else _with_listener(found, broker, http)


def ask_apart(
    connect: Callable[[], BlockingClient], broker: NodeInfo, *, with_cluster: bool = False
) -> BrokerAnswer:
    """Ask one broker on the connection that `connect` makes; if `with_cluster`, for the cluster, too."""
    try:
        client = connect()
    except (FirnError, OSError) as e:
        return BrokerAnswer(broker.node_id, silence=str(e))
    try:
        cluster = describe_through(client) if with_cluster else None
        return _answer(client, broker)._replace(cluster=cluster)
    except TimeoutError:
        return BrokerAnswer(broker.node_id, silence=f"{broker.host}:{broker.port} does not answer in time")
    except OSError as e:
        return BrokerAnswer(broker.node_id, silence=str(e))
    except FirnError as e:
        return BrokerAnswer(broker.node_id, refusal=str(e))
    finally:
        client.close()


def _answer(client: BlockingClient, broker: NodeInfo) -> BrokerAnswer:
    found = BrokerAnswer(broker.node_id)
    if client.serves(ApiKey.DESCRIBE_HEALTH):
        view, told = _health(client)
        found = found._replace(view=view, told=told)
    else:
        found = found._replace(directories=tuple(_directories(client, broker.node_id)))
    return found._replace(settings=_settings(client, broker.node_id))


def _health(client: BlockingClient) -> tuple[ViewFacts | None, tuple[Finding, ...]]:
    answer = client.request(ApiKey.DESCRIBE_HEALTH, DescribeHealthRequest())
    raise_for(answer.error_code, answer.error_message, "the broker's health")
    view = None
    if answer.metadata_age_ms >= 0:
        view = ViewFacts(answer.node_id, answer.metadata_age_ms, answer.session_ms)
    return view, tuple(_own(answer.findings[:MOST_TOLD]))


def _own(told: Iterable[ToldFinding]) -> Iterable[Finding]:
    for one in told:
        if one.anchor not in _OF_THE_CLUSTER:
            yield from from_json(
                [
                    {
                        "severity": one.severity,
                        "subject": one.subject,
                        "since_ms": None if one.since_ms < 0 else one.since_ms,
                        "words": one.words,
                        "meaning": one.meaning,
                        "action": one.action,
                        "anchor": one.anchor,
                    }
                ]
            )


def is_own(one: Finding) -> bool:
    """Return whether a finding that a node has told is about itself, and not about the cluster."""
    return one.anchor not in _OF_THE_CLUSTER


def _directories(client: BlockingClient, node_id: int) -> Iterable[DirectoryFacts]:
    module = request_module(ApiKey.DESCRIBE_LOG_DIRS)
    answer = client.request(ApiKey.DESCRIBE_LOG_DIRS, module.DescribeLogDirsRequest(topics=()))
    for one in answer.results:
        if one.error_code != ErrorCode.none:
            yield DirectoryFacts(node_id, one.log_dir, is_offline=True)


def _settings(client: BlockingClient, node_id: int) -> Mapping[str, str | None]:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    resource = module.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=(URL_KEY, *HTTP_KEYS)
    )
    answer = client.request(
        ApiKey.DESCRIBE_CONFIGS,
        module.DescribeConfigsRequest(
            resources=(resource,), include_documentation=False, include_synonyms=False
        ),
    )
    for result in answer.results:
        raise_for(result.error_code, result.error_message, f"the settings of broker {node_id}")
    return {one.name: one.value for result in answer.results for one in result.configs}


def _with_listener(found: BrokerAnswer, broker: NodeInfo, http: NodeHttp) -> BrokerAnswer:
    url = http_url(found.settings, broker.host)
    if url is None:
        return found
    address = url.partition("://")[2]
    if is_loopback(address.rpartition(":")[0].strip("[]")) and not is_loopback(broker.host):
        return found  # it is for its own machine, which need not be this one
    try:
        http.get(f"{url}/healthz", WAIT_S, _MOST_BYTES)
    except (OSError, HTTPException, ValueError) as e:
        why = getattr(e, "reason", e)
        if isinstance(why, ssl.SSLError):
            return found  # it answers, and its certificate is not trusted here
        words = (
            "no answer in time" if isinstance(why, TimeoutError) else getattr(why, "strerror", None) or why
        )
        return found._replace(listener=ListenerFacts(broker.node_id, address, str(words)))
    return found._replace(is_listening=True)


def with_answers(
    facts: ClusterFacts, brokers: Sequence[NodeInfo], answers: Iterable[BrokerAnswer]
) -> ClusterFacts:
    """Return the facts with what each broker answered."""
    by_id = {one.node_id: one for one in answers}
    known = tuple(by_id.values())
    silences = {one.node_id: one.silence for one in known}
    return facts._replace(
        brokers=tuple(BrokerFacts(one.node_id, one.is_fenced, silences.get(one.node_id)) for one in brokers),
        directories=tuple(one for answer in known for one in answer.directories),
        listeners=tuple(one.listener for one in known if one.listener is not None),
        listening=sum(one.is_listening for one in known),
        unanswered=(
            *facts.unanswered,
            *(
                UnansweredFacts(f"broker {one.node_id}", one.refusal)
                for one in known
                if one.refusal is not None
            ),
        ),
        urls={one.node_id: one.settings.get(URL_KEY) for one in known if one.settings},
        told=tuple(one for answer in known for one in answer.told),
    )
