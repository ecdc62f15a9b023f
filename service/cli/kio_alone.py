"""Loads kio without the test library that it looks for."""

from __future__ import annotations

import sys


def import_kio_alone() -> None:
    """Import kio as if ``hypothesis`` were not installed.

    kio tells hypothesis about its types wherever that can be imported, which costs a process that tests
    nothing 0.7 s, memory and a ``.hypothesis`` folder in its working directory. Where hypothesis is loaded
    already nothing is hidden, and it can be imported as ever afterwards.
    """
    if "hypothesis" in sys.modules:
        return
    # None makes `import` say that there is no such module.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
