"""Programs of tests/java/clients, compiled beside Apache Kafka's jars."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import zlib
from functools import cache
from pathlib import Path

from tests.support.processes import REPOSITORY
from tests.support.requirements import KAFKA_APPS, KAFKA_LIBS, need_javac

SOURCES = REPOSITORY / "tests" / "java" / "clients"


@cache
def compiled(program: str) -> Path:
    """The directory of a compiled program; compiled once for each content of its source."""
    need_javac()
    source = SOURCES / f"{program}.java"
    cache_dir = REPOSITORY / ".cache" / "java"
    cache_dir.mkdir(parents=True, exist_ok=True)
    target = cache_dir / f"{program}-{zlib.crc32(source.read_bytes()):08x}"
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            work = target.with_suffix(".new")
            shutil.rmtree(work, ignore_errors=True)
            command = [
                "javac",
                "-proc:none",
                "-cp",
                f"{KAFKA_LIBS}/*:{KAFKA_APPS}/*",
                "-d",
                str(work),
                str(source),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            work.rename(target)
    return target
