"""Keys of listeners, connections and requests. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.checks import http_listener_problem
from service.config.tables.columns import BOOLEAN, INT, LONG, MIB, PASSWORD, STRING, key

NETWORK: Final = (
    key(
        "listeners", STRING, "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on: `NAME://host:port,…`. An empty host is every interface, port 0 "
        "a free port. Firn's default listens on the loopback interface only.",
    ),
    key(
        "advertised.listeners", STRING, None,
        "Addresses that clients connect to, by listener name. Default: as `listeners`, with the"
        " machine's name for an empty host.",
    ),
    key(
        "listener.security.protocol.map", STRING, None,
        "Protocol of each listener name: `NAME:PROTOCOL,…`, of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL. "
        "Names not in use are ignored. Default: each protocol is the one of the listener of its name, and "
        "controllers' listeners are PLAINTEXT while no listener is secured.",
    ),
    key(
        "socket.request.max.bytes", INT, 100 * MIB,
        "Largest request; a larger one closes its connection.",
        at_least=1,
    ),
    key(
        "max.connections", INT, 2**31 - 1,
        "Most open connections; further ones wait to be accepted. The listener of brokers is exempt, if there"
        " is another one. With a listener's prefix: those of the listener.",
        at_least=1, dynamic=True, per_listener=True, listener_dynamic=True,
    ),
    key(
        "connections.max.idle.ms", LONG, 600_000,
        "An idle connection is closed after this long. -1: never.",
        at_least=-1,
    ),
    key(
        "queued.max.request.bytes", LONG, 256 * MIB,
        "Bytes of requests that are arriving or being answered, over all connections, above which no more "
        "are read. -1: no bound, which is Kafka's default and leaves memory to the clients.",
        at_least=-1,
    ),
    key(
        "firn.request.read.timeout.ms", INT, 30_000,
        "Time for one request to arrive, plus a second for every 32 KiB of it; a slower connection is "
        "closed. While memory for requests is short, a connection that stalls for a second is closed.",
        at_least=1000,
    ),
    key(
        "firn.send.timeout.ms", INT, 60_000,
        "Time for a client to receive one response, plus a second for every 32 KiB of it; a slower "
        "connection is closed.",
        at_least=1000,
    ),
    key(
        "fetch.max.bytes", INT, 55 * MIB,
        "Most bytes in one fetch response, whatever the client asks for.",
        at_least=1024,
    ),
    key(
        "max.incremental.fetch.session.cache.slots", INT, 1000,
        "Most fetch sessions. Consumers without one send all their partitions with every fetch. "
        "0: no sessions, and nothing is remembered for clients that have none.",
        at_least=0,
    ),
    key(
        "firn.fetch.session.cache.partitions", INT, 100_000,
        "Most partitions in all fetch sessions together, at about 700 bytes each, and as many in what is "
        "remembered for clients that have none (librdkafka), at about 1000.",
        at_least=0,
    ),
    key(
        "max.request.partition.size.limit", INT, 2000,
        "Most partitions in one DescribeTopicPartitions response.",
        at_least=1,
    ),
    key(
        "firn.http.listener", STRING, None,
        "Address for metrics and health over HTTP: `host:port`, or `:port` for the loopback "
        "interface; `0.0.0.0:port` is every interface. Unset: not served.",
        check=http_listener_problem,
    ),
    key(
        "firn.http.ssl.keystore.location", STRING, None,
        "PEM file with a private key and its certificate chain, with which `firn.http.listener` serves "
        "HTTPS. A changed one is loaded as those of `ssl.keystore.location` are.",
    ),
    key(
        "firn.http.ssl.key.password", PASSWORD, None,
        "Password of the private key in `firn.http.ssl.keystore.location`.",
    ),
    key(
        "firn.http.token.file", STRING, None,
        "File whose first line is the token that requests to `firn.http.listener` need, as in "
        "`Authorization: Bearer TOKEN`; `/healthz` needs none. A changed one is read as certificates are. "
        "Unset: everybody who reaches the listener is served.",
    ),
    key(
        "firn.metrics.partitions.enable", BOOLEAN, False,
        "Whether the metrics have offsets, sizes and lags of each partition: up to eight series for each.",
    ),
    key(
        "firn.metrics.partitions.max", INT, 10_000,
        "Most partitions with metrics of their own, if `firn.metrics.partitions.enable` is set: those that "
        "the node has opened first.",
        at_least=0,
    ),
    key(
        "firn.metrics.topics.max", INT, 500,
        "Most topics with traffic of their own in the metrics: the first that the node opens; the traffic of "
        "the others is summed up as of one topic, `(others)`.",
        at_least=0,
    ),
    key(
        "firn.metrics.groups.max", INT, 200,
        "Most groups of which a coordinator's metrics have lag and members; those with members are preferred,"
        " then the first by name. 0: none, and no other broker is asked for the ends of logs.",
        at_least=0, dynamic=True,
    ),
)  # fmt: skip
