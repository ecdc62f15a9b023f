"""Writer of docs/configuration.md: `python -m service.config.docs > docs/configuration.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from service.config.keys import ConfigKey, to_text
from service.config.tables import BROKER_KEYS, REFUSED, TOPIC_KEYS
from service.config.tables.groups import GROUP

_HEAD = """# Configuration

Generated from the key tables by `python -m service.config.docs`; a test keeps it current.

`firn server [CONFIG.properties] [--set key=value …]` reads Java's `.properties` syntax. Names, types,
defaults and bounds are Apache Kafka 4.3's where Kafka has the key; keys under `firn.` are ours. A key is
accepted only if it has an effect: an unknown key or an invalid value stops the node at start with
its name and the reason, all errors at once. Keys of Kafka that have no effect here are accepted at Kafka's
default, with a warning in the log. Credentials of object storage are never configured here: they come from
its environment, for S3 from the usual AWS chain. Values of type password are shown nowhere.

"""
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
    parts = [_HEAD, _DIFFERENCES]
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
    parts.append(
        "\n## Refused, and why\n\nUnless they have Apache Kafka's default.\n\n| key | reason |\n|---|---|\n"
    )
    parts.extend(f"| `{name}{'*' if name[-1] == '.' else ''}` | {why} |\n" for name, why in REFUSED.items())
    return "".join(parts)


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
