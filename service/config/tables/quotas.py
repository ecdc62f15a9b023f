"""Keys of quotas: windows of averages, and limits on connections. [P]"""

from __future__ import annotations

from typing import Final

from service.config.keys import INT_MAX
from service.config.tables.checks import connection_overrides_problem
from service.config.tables.columns import INT, STRING, key

QUOTAS: Final = (
    key(
        "quota.window.num", INT, 11,
        "Number of windows over which the rates of clients and of new connections are averaged; the last one "
        "is not complete.",
        at_least=1,
    ),
    key(
        "quota.window.size.seconds", INT, 1,
        "Size of each of these windows; the longest throttle of `request_percentage` and of connections.",
        at_least=1,
    ),
    key(
        "controller.quota.window.num", INT, 11,
        "Number of windows whose `controller_mutation_rate` a client may use at once.",
        at_least=1,
    ),
    key(
        "controller.quota.window.size.seconds", INT, 1,
        "Size of each of these windows.",
        at_least=1,
    ),
    key(
        "max.connections.per.ip", INT, INT_MAX,
        "Most open connections of one address, over all listeners; further ones are closed at once.",
        at_least=0, dynamic=True,
    ),
    key(
        "max.connections.per.ip.overrides", STRING, "",
        "The same for some addresses: `address:count,…`. Addresses only: names are not resolved.",
        check=connection_overrides_problem, dynamic=True,
    ),
    key(
        "max.connection.creation.rate", INT, INT_MAX,
        "Most new connections per second, over all listeners; further ones wait to be accepted. The listener "
        "of brokers is exempt where there is another one. With a listener's prefix: those of the listener.",
        at_least=0, dynamic=True, per_listener=True, listener_dynamic=True,
    ),
)  # fmt: skip
