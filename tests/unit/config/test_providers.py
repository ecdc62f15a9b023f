"""Values of properties that stand elsewhere: the environment, properties files, files of a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.config.providers import resolved

PACKAGE = "org.apache.kafka.common.config.provider"
SECRET = "geheim-9"
ENV = {"config.providers": "env", "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider"}
FILE = {"config.providers": "file", "config.providers.file.class": f"{PACKAGE}.FileConfigProvider"}
DIRECTORY = {"config.providers": "dir", "config.providers.dir.class": f"{PACKAGE}.DirectoryConfigProvider"}


def value(text: str, providers: dict[str, str], environment: dict[str, str] | None = None) -> str:
    found = resolved({**providers, "a.key": text}, environment or {})
    assert set(found) == {"a.key", "config.providers"}
    return found["a.key"]


def refused(text: str, providers: dict[str, str], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        resolved({**providers, "a.key": text}, environment or {})
    assert SECRET not in str(raised.value)
    return str(raised.value)


def test_text_without_a_variable_stays_as_it_is() -> None:
    assert resolved({"a": "$1 ${x} {y:z} $", "b": ""}, {}) == {"a": "$1 ${x} {y:z} $", "b": ""}


class TestEnvironment:
    def test_variables_are_replaced_wherever_they_stand(self) -> None:
        found = value('user="${env:USER}" password="${env:PW}";', ENV, {"USER": "u", "PW": "a=b${env:USER}"})
        assert found == 'user="u" password="a=b${env:USER}";'  # once: no value is looked through again

    def test_a_variable_that_is_not_there_is_refused(self) -> None:
        assert refused("${env:PW}", ENV, {"PW2": SECRET}) == "a.key: ${env:PW}: there is no such value"

    def test_names_outside_the_allowed_pattern_are_not_there(self) -> None:
        only = {**ENV, "config.providers.env.param.allowlist.pattern": "FIRN_.*"}
        assert value("${env:FIRN_A}", only, {"FIRN_A": "1"}) == "1"
        assert refused("${env:HOME}", only, {"HOME": SECRET}) == "a.key: ${env:HOME}: there is no such value"

    def test_a_path_is_refused_in_kafkas_words(self) -> None:
        assert refused("${env:/etc:PW}", ENV) == (
            "a.key: Path is not supported for EnvVarConfigProvider, invalid value '/etc'"
        )


class TestFiles:
    def test_a_key_of_a_properties_file_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "s.properties").write_text("# secrets\nkey = geheim\nother: x\\\n  y\n")
        assert value(f"<${{file:{tmp_path}/s.properties:key}}>", FILE) == "<geheim>"
        assert value(f"${{file:{tmp_path}/s.properties:other}}", FILE) == "xy"
        missing = f"${{file:{tmp_path}/s.properties:third}}"
        assert refused(missing, FILE) == f"a.key: {missing}: there is no such value"

    def test_a_file_that_cannot_be_read_is_named_with_the_reason(self, tmp_path: Path) -> None:
        assert refused(f"${{file:{tmp_path}/none:k}}", FILE) == (
            f"a.key: {tmp_path}/none: No such file or directory"
        )
        assert "the path is missing" in refused("${file:k}", FILE)

    def test_nothing_outside_the_allowed_paths_is_read(self, tmp_path: Path) -> None:
        inside, outside = tmp_path / "in", tmp_path / "in-not"
        for folder in (inside, outside):
            folder.mkdir()
            (folder / "f").write_text("k=v")
        only = {**FILE, "config.providers.file.param.allowed.paths": str(inside)}
        assert value(f"${{file:{inside}/f:k}}", only) == "v"
        for path in (f"{outside}/f", f"{inside}/../in-not/f", "../../../etc/passwd"):
            assert (
                refused(f"${{file:{path}:k}}", only)
                == f"a.key: The path {path} is not allowed to be accessed"
            )

    @pytest.mark.parametrize("path", ["relative", "/no/such/folder"])
    def test_allowed_paths_are_absolute_and_there(self, path: str) -> None:
        reason = "does not exist" if path[0] == "/" else "is not absolute"
        name = "config.providers.file.param.allowed.paths"
        assert refused("", {**FILE, name: path}) == f"{name}: Path {path} {reason}"


class TestDirectories:
    def test_a_file_is_a_value_as_it_stands(self, tmp_path: Path) -> None:
        (tmp_path / "pw").write_text("geheim\n")
        assert value(f"${{dir:{tmp_path}:pw}}", DIRECTORY) == "geheim\n"
        for name in ("none", "..", f"../{tmp_path.name}/pw", ""):
            text = f"${{dir:{tmp_path}:{name}}}"
            assert refused(text, DIRECTORY) == f"a.key: {text}: there is no such value"

    def test_bytes_that_are_no_text_are_refused_and_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "pw").write_bytes(SECRET.encode() + b"\xff")
        assert refused(f"${{dir:{tmp_path}:pw}}", DIRECTORY) == f"a.key: {tmp_path}/pw: not UTF-8 text"

    def test_a_value_has_a_most(self, tmp_path: Path) -> None:
        (tmp_path / "pw").write_bytes(b"x" * (1 << 20))
        assert len(value(f"${{dir:{tmp_path}:pw}}", DIRECTORY)) == 1 << 20
        (tmp_path / "pw").write_bytes(b"x" * ((1 << 20) + 1))
        assert "over 1048576 bytes is refused" in refused(f"${{dir:{tmp_path}:pw}}", DIRECTORY)

    def test_a_file_instead_of_the_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "pw").write_text("x")
        assert refused(f"${{dir:{tmp_path}/pw:pw}}", DIRECTORY) == (
            f"a.key: The path {tmp_path}/pw is not a directory"
        )

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_a_file_that_may_not_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "pw").touch(0o000)
        assert "Permission denied" in refused(f"${{dir:{tmp_path}:pw}}", DIRECTORY)


class TestNames:
    THERE_IS = ", ".join(f"{PACKAGE}.{kind}ConfigProvider" for kind in ("EnvVar", "File", "Directory"))

    def test_a_provider_that_is_not_named_is_refused(self) -> None:
        assert refused("${vault:a:b}", ENV) == "a.key: ${vault:a:b}: config.providers does not name 'vault'"
        assert refused("${file:/a:b}", {}) == "a.key: ${file:/a:b}: config.providers does not name 'file'"

    def test_the_environment_need_not_be_named(self) -> None:
        assert resolved({"a.key": "${env:A}"}, {"A": "1"}) == {"a.key": "1"}
        other = {"config.providers": "env", "config.providers.env.class": f"{PACKAGE}.FileConfigProvider"}
        assert "the path is missing" in refused("${env:A}", other, {"A": "1"})

    def test_a_provider_has_one_of_kafkas_three_classes(self) -> None:
        assert refused("", {"config.providers": "env"}) == (
            f"config.providers.env.class: not set; there is {self.THERE_IS}"
        )
        assert refused("", {"config.providers": "v", "config.providers.v.class": "com.example.Vault"}) == (
            f"config.providers.v.class: 'com.example.Vault' is not served; there is {self.THERE_IS}"
        )

    def test_settings_of_no_provider_are_refused(self) -> None:
        assert refused("", {**ENV, "config.providers.evn.param.allowlist.pattern": ".*"}) == (
            "config.providers.evn.param.allowlist.pattern: config.providers does not name this provider"
        )
        assert refused("", {**ENV, "config.providers.env.param.allowlist.patern": ".*"}) == (
            "config.providers.env.param.allowlist.patern: unknown configuration key; did you mean "
            "'param.allowlist.pattern'?"
        )
        assert refused("", {**ENV, "config.providers.env.param.allowlist.pattern": "("}).startswith(
            "config.providers.env.param.allowlist.pattern: "
        )

    def test_all_errors_come_at_once(self) -> None:
        assert len(refused("${a:b}", {**ENV, "b.key": "${c:d}", "c.key": "${env:x}"}).splitlines()) == 3
