"""Keys of a node's identity, and of topics that clients create. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.checks import cluster_id_problem, processes_problem
from service.config.tables.columns import BOOLEAN, INT, LIST, STRING, key

NODE: Final = (
    key(
        "config.providers", LIST, (),
        "Names of config providers, by which values can stand elsewhere: `${env:NAME}`, `${file:/path:key}`, "
        "`${directory:/dir:file}`. The class of each in `config.providers.<name>.class` is one of Kafka's "
        "three, `EnvVarConfigProvider`, `FileConfigProvider` and `DirectoryConfigProvider` in "
        "`org.apache.kafka.common.config.provider`, with `config.providers.<name>.param.allowlist.pattern` "
        "or `.param.allowed.paths`.",
    ),
    key(
        "firn.config.strict", BOOLEAN, False,
        "Whether keys of things that a node does not have are refused, at other values than Apache Kafka's "
        "defaults; false: they are taken with a warning. [From Kafka](from-kafka.md) lists them.",
    ),
    key(
        "node.id", INT, 1,
        "Number of this node.",
        at_least=0,
    ),
    key(
        "broker.id", INT, -1,
        "Another name of `node.id`, as Apache Kafka's files had before 4.0. Both set: equal. -1: not set.",
        at_least=-1,
    ),
    key(
        "broker.rack", STRING, None,
        "Rack of this node, for clients and for the placement of replicas. Replicas are on different racks "
        "and, within a rack, on different machines where it can be done.",
    ),
    key(
        "firn.processes", STRING, "1",
        "Nodes that `firn server` runs on this machine with these settings, each in a process of its own: a "
        "number, or `auto` for one on each core. [Several processes](operations.md#several-processes-on-a-"
        "machine) has what each of them gets. Of a file for several, `firn server --process K` runs one.",
        check=processes_problem,
    ),
    key(
        "firn.processes.id.step", INT, 1000,
        "The `node.id` of a process is that of the one before it and this. Machines whose own ids are below "
        "it never share one.",
        at_least=1,
    ),
    key(
        "firn.processes.port.step", INT, 10,
        "The ports of a process are those of the one before it and this: of `listeners`, "
        "`advertised.listeners` and `firn.http.listener`.",
        at_least=1, at_most=65535,
    ),
    key(
        "firn.cluster.id", STRING, None,
        "Cluster id to format an empty data directory with. Default: a random one. A directory "
        "formatted with another id is refused. A new disk takes an existing prefix over with this "
        "and `firn.remote.recover`; without the latter it serves, and neither writes to the "
        "prefix nor deletes from it.",
        check=cluster_id_problem,
    ),
    key(
        "firn.log.format", STRING, "text",
        "How the node logs to stderr: lines of text, or JSON, one object a line, with the keys of "
        "operations.md. Both have times in UTC.",
        one_of=("text", "json"),
    ),
    key(
        "num.partitions", INT, 1,
        "Partitions of a topic that is created without a number of partitions.",
        at_least=1,
    ),
    key(
        "default.replication.factor", INT, 1,
        "Replicas of a topic that is created without a number of replicas.",
        at_least=1, at_most=32767,
    ),
    key(
        "auto.create.topics.enable", BOOLEAN, True,
        "Create a topic when a client asks for its metadata and allows it.",
    ),
    key(
        "delete.topic.enable", BOOLEAN, True,
        "Allow topics to be deleted.",
    ),
)  # fmt: skip
