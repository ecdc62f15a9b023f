"""Import of kio without hypothesis."""

from __future__ import annotations

import sys


def import_kio_alone() -> None:
    """Import kio as if ``hypothesis`` were not installed.

    kio registers its types with hypothesis if that can be imported, which costs a process without tests
    0.7 s, memory and a ``.hypothesis`` folder in its working directory. If hypothesis is already loaded it is
    not hidden, and it can be imported as usual afterwards.
    """
    if "hypothesis" in sys.modules:
        return
    # None makes `import` raise ModuleNotFoundError.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]
