"""One node: built here, from the ground up, and ended here, from the top down.

Start: data directories (formatted where they are empty), metadata log and controller, logs of all partitions,
object store, offload, listeners; then the `ready` line. The order is that of dependence, so that no request
arrives before what serves it. The end is the reverse: listeners first, the clean-shutdown marker last.

Object storage that cannot be reached does not keep a node from starting: hot data is served, and offload and
cold reads go on by themselves when it is back. A prefix that belongs to another cluster does.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)
