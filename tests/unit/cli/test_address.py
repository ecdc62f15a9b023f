"""Cluster that a command asks: options, environment, properties, profile, in this order."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import ConfigError
from service.base.properties_file import load_properties
from service.cli.address import fill_in
from service.cli.main import main
from service.cli.profiles import Profiles


def found(environ: dict[str, str], **given: str | None) -> tuple[str, str | None]:
    args = argparse.Namespace(**({"bootstrap_server": None, "command_config": None} | given))
    fill_in(args, environ)
    return args.bootstrap_server, args.command_config


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FIRN_BOOTSTRAP", "FIRN_COMMAND_CONFIG", "FIRN_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_options_come_before_the_environment_and_that_before_properties(home: Path) -> None:
    file = home / "a.properties"
    file.write_text("bootstrap.servers=c:3,d:4\n")
    environ = {"XDG_CONFIG_HOME": str(home)}
    assert found(environ) == ("127.0.0.1:9092", None)
    with_file = environ | {"FIRN_COMMAND_CONFIG": str(file)}
    assert found(with_file) == ("c:3,d:4", str(file))
    both = with_file | {"FIRN_BOOTSTRAP": "b:2"}
    assert found(both) == ("b:2", str(file))
    assert found(both, bootstrap_server="a:1", command_config="x") == ("a:1", "x")


def test_a_file_that_an_option_names_comes_before_the_environment(home: Path) -> None:
    named, other, bare = (home / f"{name}.properties" for name in ("named", "other", "bare"))
    named.write_text("bootstrap.servers=a:1\n")
    other.write_text("bootstrap.servers=c:3\n")
    bare.write_text("security.protocol=PLAINTEXT\n")
    environ = {
        "XDG_CONFIG_HOME": str(home), "FIRN_BOOTSTRAP": "b:2", "FIRN_COMMAND_CONFIG": str(other)
    }  # fmt: skip
    assert found(environ, command_config=str(named)) == ("a:1", str(named))
    assert found(environ, command_config=str(bare)) == ("b:2", str(bare))
    assert found(environ, command_config=str(named), bootstrap_server="d:4") == ("d:4", str(named))


def test_the_profile_in_use_is_asked_last(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    properties = home / "login.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=b\\\\c\n"
    )
    assert main(["profile", "add", "one", "h:1,h:2"]) == 0
    assert main(["profile", "add", "two", "h:3", "--properties", str(properties)]) == 0
    assert main(["profile", "use", "two"]) == 0
    capsys.readouterr()
    assert main(["profile", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name  brokers  security",
        "one   h:1,h:2  PLAINTEXT",
        "two   h:3      SASL_PLAINTEXT  in use",
    ]
    two = home / "firn" / "two.properties"
    assert two.stat().st_mode & 0o777 == 0o600
    assert "sasl.password=b\\\\c\n" in two.read_text()
    assert found(dict(os.environ)) == ("h:3", str(two))
    assert found({**os.environ, "FIRN_PROFILE": "one"})[0] == "h:1,h:2"
    assert main(["profile", "remove", "two"]) == 0
    assert found(dict(os.environ)) == ("127.0.0.1:9092", None)


def test_a_profiles_credentials_go_to_its_own_brokers_alone(home: Path) -> None:
    properties = home / "login.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=a\nsasl.password=hunter2\n"
    )
    assert main(["profile", "add", "prod", "a:1,B:2", "--properties", str(properties)]) == 0
    assert main(["profile", "use", "prod"]) == 0
    path = str(home / "firn" / "prod.properties")
    environ = dict(os.environ)
    assert found(environ, bootstrap_server="b:2") == ("b:2", path)
    for named in ("evil:1", "a:1,evil:1", "a:2"):
        with pytest.raises(ConfigError) as refused:
            found(environ, bootstrap_server=named)
        assert str(refused.value) == (
            f"--bootstrap-server {named.split(',')[-1]}: the profile in use, prod, has credentials for"
            " a:1,b:2, which must not go elsewhere; name the properties for it with --command-config FILE, or"
            " choose another profile, or none: firn profile use [NAME]"
        )
    with pytest.raises(ConfigError, match=r"^FIRN_BOOTSTRAP evil:1: the profile in use, prod, has"):
        found(environ | {"FIRN_BOOTSTRAP": "evil:1"})
    with pytest.raises(ConfigError, match=r"^--bootstrap-controller evil:9093: the profile"):
        found(environ, bootstrap_controller="evil:9093")
    assert found(environ | {"FIRN_BOOTSTRAP": "evil:1"}, bootstrap_controller="a:9093")[1] == path
    for url, is_refused in (("http://evil:9464", True), ("http://a:9464", False), ("http://[::1]:1", False)):
        options: list[dict[str, Any]] = [{"url": url}, {"metrics": [(1, url)]}]
        for told in options:
            args = argparse.Namespace(bootstrap_server=None, command_config=None, **told)
            with pytest.raises(ConfigError, match="evil") if is_refused else nullcontext():
                fill_in(args, environ)
    # What is named with the command is meant for it.
    assert found(environ, bootstrap_server="evil:1", command_config=path) == ("evil:1", path)
    assert found(environ | {"FIRN_COMMAND_CONFIG": path}, bootstrap_server="evil:1") == ("evil:1", path)


def test_a_profile_without_credentials_is_for_any_broker(home: Path) -> None:
    assert main(["profile", "add", "plain", "a:1"]) == 0
    assert main(["profile", "use", "plain"]) == 0
    assert found(dict(os.environ), bootstrap_server="b:2")[0] == "b:2"


def test_a_profile_that_is_not_there_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no profile gone"):
        found({**os.environ, "FIRN_PROFILE": "gone"})
    for words in (["use", "gone"], ["remove", "gone"], ["add", "../x", "h:1"], ["use", "../../etc/passwd"]):
        assert main(["profile", *words]) == 1
        assert "profile" in capsys.readouterr().err


def test_properties_that_no_command_would_take_make_no_profile(home: Path) -> None:
    file = home / "bad.properties"
    file.write_text("no.such.key=1\n")
    assert main(["profile", "add", "bad", "h:1", "--properties", str(file)]) == 1
    assert Profiles(os.environ).names() == []


def test_an_unreadable_choice_is_an_error_and_no_other_cluster(home: Path) -> None:
    (home / "firn").mkdir()
    (home / "firn" / "in-use").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="in-use"):
        found(dict(os.environ))


def test_profiles_are_listed_beside_files_that_are_none(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "add", "one", "h:1"]) == 0
    for name in ("one copy", ".#one", "two\n"):
        (home / "firn" / f"{name}.properties").write_text("bootstrap.servers=h:9\n")
    (home / "firn" / "bad.properties").write_bytes(b"sasl.password=hunter2\xff")
    capsys.readouterr()
    assert main(["profile", "list"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == ["name  brokers  security", "one   h:1      PLAINTEXT"]
    assert "bad.properties" in said.err
    assert "hunter2" not in said.err


def test_no_profile_of_the_working_directory_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be anybody's, where HOME is not set, as in a cron job or a container."""
    monkeypatch.chdir(home)
    for environ in ({}, {"HOME": ""}, {"HOME": "."}, {"XDG_CONFIG_HOME": ".config"}):
        assert Profiles(environ).folder.is_absolute()
        assert not Profiles(environ).folder.is_relative_to(home)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_a_value_comes_back_from_a_profile_as_it_was(value: str) -> None:
    with TemporaryDirectory() as folder:
        path = Profiles({"XDG_CONFIG_HOME": folder}).add("one", {"sasl.password": value})
        assert load_properties(path) == {"sasl.password": value}
