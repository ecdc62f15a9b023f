"""Keys of the metadata quorum and its log. [P]"""

from __future__ import annotations

from typing import Final

from service.config.tables.columns import HOUR_MS, INT, LIST, LONG, MIB, key

METADATA_LOG: Final = (
    key(
        "metadata.log.segment.bytes", INT, 1 << 30,
        "Segment size of the metadata log.",
        at_least=8 * MIB,
    ),
    key(
        "metadata.log.max.record.bytes.between.snapshots", LONG, 20 * MIB,
        "Bytes of metadata log after which a snapshot is written.",
        at_least=1,
    ),
    key(
        "metadata.log.max.snapshot.interval.ms", LONG, HOUR_MS,
        "Time after which a snapshot is written when there is anything new. 0: never by time.",
        at_least=0,
    ),
)  # fmt: skip

QUORUM: Final = (
    key(
        "process.roles", LIST, ("broker", "controller"),
        "Roles of this node. A single node is both, in either order.",
        one_of=("broker", "controller"),
    ),
    key(
        "controller.listener.names", LIST, (),
        "Names in `listeners` that belong to the controller. A single node speaks to its "
        "controller in memory: these listeners are left closed.",
    ),
    key(
        "controller.quorum.voters", LIST, (),
        "`id@host:port` of the metadata quorum's voters. Only this node itself can be named.",
    ),
    *METADATA_LOG,
)  # fmt: skip
"""What a node that is alone takes; `cluster.CLUSTER` has what one of several does."""
