"""Keys of delegation tokens. [P]

From Apache Kafka's `DelegationTokenManagerConfigs` of 4.3.1.
"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import LONG, PASSWORD, key

TOKENS: Final = (
    key(
        "delegation.token.secret.key", PASSWORD, None,
        "Key from which the passwords of delegation tokens are made, the same on all brokers and "
        "controllers. Unset or empty: there are no tokens. See [security](security.md#delegation-tokens).",
    ),
    key(
        "delegation.token.max.lifetime.ms", LONG, 604_800_000,
        "Longest life of a delegation token, beyond which it cannot be renewed. Counts on controllers.",
        at_least=1,
    ),
    key(
        "delegation.token.expiry.time.ms", LONG, 86_400_000,
        "Time after which a delegation token ends unless it is renewed. Counts on controllers.",
        at_least=1,
    ),
    key(
        "delegation.token.expiry.check.interval.ms", LONG, 3_600_000,
        "Interval at which the controller removes delegation tokens that have ended.",
        at_least=1,
    ),
)  # fmt: skip
