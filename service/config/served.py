"""What nodes can do by now, where the tables of keys ask. [P]"""

from __future__ import annotations

SEVERAL_NODES: bool = True
"""Whether nodes take the keys of `tables.cluster`. Until they do, a node is alone: `tables.quorum` is all
that it takes, and what it would ignore it refuses."""
