"""Place of a node in its cluster. [P]"""

from __future__ import annotations

from typing import NamedTuple


class NodeIdentity(NamedTuple):
    """Place of a node. The cluster's id is empty before the node knows it, the rack where it has none."""

    node_id: int
    cluster_id: str
    rack: str
