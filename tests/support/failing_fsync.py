"""A device whose write-through fails under a running node: `failing_fsync.c`, compiled and preloaded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.requirements import need_c_compiler

SOURCE = Path(__file__).with_name("failing_fsync.c")


class FailingFsync:
    """`env` is for the process that is to suffer; `on` and `off` while it runs. Skips without a compiler."""

    def __init__(self, folder: Path, path_has: str, *, once: bool = False) -> None:
        """Calls fail for files and directories with `path_has` in their path; `once`: each `on` fails one."""
        need_c_compiler()
        compiler = shutil.which("cc")
        assert compiler is not None
        library = folder / "failing_fsync.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        self._switch = folder / "failing_fsync.on"
        self.env = {
            "LD_PRELOAD": str(library),
            "FIRN_TEST_FSYNC_SWITCH": str(self._switch),
            "FIRN_TEST_FSYNC_PATH": path_has,
            **({"FIRN_TEST_FSYNC_ONCE": "1"} if once else {}),
        }

    def on(self) -> None:
        self._switch.touch()

    def off(self) -> None:
        self._switch.unlink(missing_ok=True)

    @property
    def is_on(self) -> bool:
        """Return whether calls fail; with `once`, whether none has failed yet."""
        return self._switch.exists()
