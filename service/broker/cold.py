"""The node's cold tier: the stores, the reader and the offload work, opened and closed as one."""

from __future__ import annotations


class ColdTier:
    pass
