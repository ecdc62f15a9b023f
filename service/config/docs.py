"""Writer of docs/configuration.md: `python -m service.config.docs > docs/configuration.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from service.config.environment import RESERVED, RESERVED_PREFIXES, key_variable
from service.config.keys import ConfigKey, to_text
from service.config.tables import BROKER_KEYS, TOPIC_KEYS
from service.config.tables.groups import GROUP

_HEAD = """# Configuration

Generated from the key tables by `python -m service.config.docs`; a test keeps it current.

`firn server [CONFIG.properties] [--set key=value …]` reads Java's `.properties` syntax; `--override`, which
Kafka's start script has, is `--set`. Names, types, defaults and bounds are Apache Kafka 4.3's where Kafka has
the key; keys under `firn.` are ours. An unknown key or an invalid value stops the node at start: all that is
wrong is said at once, each with its file and line. Keys of things that are not here (threads, socket buffers,
share groups, …) are taken with a warning each; `firn.config.strict=true` refuses them. Keys without which a
node would be less safe than its file says are refused, each with what to do. [From Kafka](from-kafka.md) has
both lists. `firn config explain CONFIG.properties` says of each key what becomes of it. Credentials of object
storage are never configured here: they come from its environment, for S3 from the usual AWS chain. Values of
type password are shown nowhere.

"""
_ENVIRONMENT = """## Environment

`firn server` and `firn format` take settings from environment variables, too, for containers. A variable is
`FIRN_` and the key in capitals, with `_` for a dot, `__` for an underscore and `___` for a hyphen; `firn.` is
left out:

| key | variable |
|---|---|
{rows}
The environment has the lowest precedence: a key of the file overrules it, and `--set` overrules both. A
variable that another value overrules is named in the log, and so is one that begins with `FIRN_` and is no
setting, which `firn.config.strict=true` refuses. One that is a setting's but for a letter or two
is refused as a typing error, as a key of the file is. Not settings, and passed over: {reserved}; and what
Kubernetes and Docker put into containers for a service called `firn`, as `FIRN_PORT` and `FIRN_SERVICE_HOST`.
A variable of another name is used by `${{env:NAME}}`, in any value.

"""
_EXAMPLES = (
    "log.dirs",
    "firn.remote.url",
    "listener.name.external.ssl.keystore.location",
    "listener.name.internal.scram-sha-512.sasl.jaas.config",
)
_DIFFERENCES = """What differs from Kafka:
- `node.id` defaults to 1, `process.roles` to `broker,controller`. A node of both roles that names neither
  `controller.quorum.bootstrap.servers` nor another voter in `controller.quorum.voters` is alone: it is its
  own quorum and needs no listener for the controller. With such a listener other nodes can join it.
- `listeners` defaults to the loopback interface, `log.dir` to `firn-data` in the working directory.
- Every broker's listener must be advertised.
- `controller.quorum.append.linger.ms` defaults to 0, not 25.
- `firn.remote.url` enables tiered storage.
- A value of type password is never in the metadata, which is copied to the bucket: IncrementalAlterConfigs
  answers INVALID_CONFIG. Set it in the properties, by a config provider, or name a store file without one.
- A variable of a config provider (`${env:NAME}`) that has no value is refused; Kafka takes its text as value.
- What is set below `listener.name.` for a listener that there is not, or as a key that no single listener
  has, is refused; Kafka ignores it.
- GSSAPI, Kafka's default of `sasl.enabled.mechanisms`, `sasl.mechanism.inter.broker.protocol` and
  `sasl.mechanism.controller.protocol`, is refused where a listener uses SASL: name a mechanism.
- Controllers cannot log in at each other with SCRAM: its credentials are in the log for which they first have
  to elect a leader.
- TLS 1.0 and 1.1 are refused; keys that choose classes or providers of Java, too.
"""
_NODE = """## Node

Keys marked * can be altered while the node runs. Keys marked † can be set for one listener, too, and those
marked ‡ for one SASL mechanism of it: `listener.name.internal.ssl.client.auth`,
`listener.name.internal.scram-sha-512.sasl.jaas.config`, names in lower case; the most specific value counts.
Keys marked †* can be altered while the node runs, for one listener of one broker.

"""


def markdown() -> str:
    """Return the whole text of docs/configuration.md."""
    parts = [_HEAD, _environment(), _DIFFERENCES]
    parts.append(_NODE)
    parts.append(_table(BROKER_KEYS.values()))
    parts.append(
        "\n## Topic\n\nSet when a topic is created, or later with `firn topic alter` or `kafka-configs"
        " --alter`.\n\n"
    )
    parts.append(_table(TOPIC_KEYS.values()))
    parts.append(
        "\n## Group\n\nSet for one consumer group, with `firn config set --group` or `kafka-configs --alter"
        " --entity-type groups`.\n\n"
    )
    parts.append(_table(GROUP))
    return "".join(parts)


def _environment() -> str:
    names = (*RESERVED, *(f"{prefix}…" for prefix in RESERVED_PREFIXES))
    rows = "".join(f"| `{key}` | `{key_variable(key)}` |\n" for key in _EXAMPLES)
    return _ENVIRONMENT.format(rows=rows, reserved=", ".join(f"`{name}`" for name in names))


def _table(keys: Iterable[ConfigKey]) -> str:
    rows = ["| key | type | default | valid | what it does |\n|---|---|---|---|---|\n"]
    shown_keys = (key for key in keys if not key.internal)
    for key in sorted(shown_keys, key=lambda key: (key.name.startswith("firn."), key.name)):
        default = to_text(key.default)
        shown = "" if default is None else f"`{default}`" if default else "(empty)"
        valid = key.valid_values()
        mark = (
            " "
            + "†" * key.per_listener
            + "‡" * key.per_mechanism
            + "*" * (key.dynamic or key.listener_dynamic)
        )
        rows.append(
            f"| `{key.name}`{mark.rstrip()} | {key.type.name.lower()} | {shown} | {valid} | {key.doc} |\n"
        )
    return "".join(rows)


if __name__ == "__main__":
    sys.stdout.write(markdown())
