"""The proof that a bucket is whole, by `firn fsck`, as an operator runs it."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from tests.support.processes import FIRN
from tests.support.stores import Store


def fsck(store: Store) -> dict[str, Any]:
    """Runs `firn fsck` straight at the store, asserts that it finds nothing wrong, and returns its report."""
    command = [str(FIRN), "fsck", "--json", store.url]
    if store.endpoint is not None:
        command += ["--endpoint", store.endpoint]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **store.env}
    )
    assert done.returncode == 0, (
        f"fsck left with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report
