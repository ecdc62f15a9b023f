from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.remote.stores.aws_credentials import credential_provider, read_profile
from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.remote.stores.obstore_store import StoreOptions, open_store
from tests.support.world import WORLD

FILES = {
    "credentials": "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n"
    "[work]\naws_access_key_id=w\naws_secret_access_key=ws\naws_session_token=wt\n",
    "config": "[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\n"
    "[profile bare]\nregion=x\n",
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    for name, text in FILES.items():
        (tmp_path / ".aws" / name).write_text(text)
    return {"HOME": str(tmp_path)}


def test_the_default_profile_is_read_from_the_home_folder(environ: dict[str, str]) -> None:
    profile = read_profile(environ)
    assert profile is not None
    assert (profile.name, profile.region, profile.has_static_keys) == ("default", "eu-west-1", True)
    provider = credential_provider(environ)
    assert provider is not None
    given = provider()
    assert (given["access_key_id"], given["secret_access_key"], given["token"]) == ("d", "ds", None)


def test_a_named_profile_merges_both_files(environ: dict[str, str]) -> None:
    environ["AWS_PROFILE"] = "work"
    profile = read_profile(environ)
    assert profile is not None
    assert profile.region == "eu-north-1"
    provider = credential_provider(environ)
    assert provider is not None
    assert provider()["token"] == "wt"


def test_files_may_lie_elsewhere_and_rotated_keys_are_seen(environ: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("[default]\naws_access_key_id=1\naws_secret_access_key=2\n")
    environ["AWS_SHARED_CREDENTIALS_FILE"] = str(path)
    provider = credential_provider(environ)
    assert provider is not None
    assert provider()["access_key_id"] == "1"
    path.write_text("[default]\naws_access_key_id=3\naws_secret_access_key=4\n")
    assert provider()["access_key_id"] == "3"
    path.write_text("")
    with pytest.raises(StoreRefused):
        provider()


def test_environment_and_web_identity_come_before_the_files(environ: dict[str, str]) -> None:
    assert credential_provider({**environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}) is None
    assert credential_provider({**environ, "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}) is None


def test_without_files_or_keys_in_them_obstore_decides(environ: dict[str, str], tmp_path: Path) -> None:
    assert credential_provider({"HOME": str(tmp_path / "nobody")}) is None
    assert credential_provider({**environ, "AWS_PROFILE": "bare"}) is None


def test_a_profile_that_is_nowhere_is_a_configuration_error(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"AWS_PROFILE.*'nope'"):
        read_profile({**environ, "AWS_PROFILE": "nope"})


def test_a_file_that_is_not_ini_is_a_configuration_error(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".aws" / "config").write_text("no section\n")
    with pytest.raises(ConfigError, match="config"):
        read_profile(environ)


def test_a_profile_that_runs_a_process_is_left_to_boto3(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.json").write_text('{"Version": 1, "AccessKeyId": "p", "SecretAccessKey": "ps"}')
    config = tmp_path / ".aws" / "config"
    config.write_text(f"[profile process]\ncredential_process = cat {tmp_path / 'keys.json'}\n")
    # boto3 looks at the process's own environment.
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    provider = credential_provider({**environ, "AWS_PROFILE": "process"})
    assert provider is not None
    given = provider()
    assert (given["access_key_id"], given["secret_access_key"], given["token"]) == ("p", "ps", None)


@pytest.mark.parametrize(
    "url",
    ["", "bucket", "ftp://x/y", "s3://", "s3:///x", "s3://b?x=1", "file://host/x", "file:", "memory:///"],
)
def test_a_url_that_names_no_store_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url, world=replace(WORLD, environ={}))


def test_a_server_that_is_not_there_is_unavailable_and_retryable() -> None:
    options = StoreOptions(max_retries=0, connect_timeout_s=1, request_timeout_s=2, retry_timeout_s=1)
    store = open_store(
        "s3://bucket/p",
        endpoint="http://127.0.0.1:9",
        access_key_id="a",
        secret_access_key="b",
        options=options,
        world=replace(WORLD, environ={}),
    )
    with pytest.raises(StoreUnavailable):
        store.get("k", max_size=10)
    with pytest.raises(StoreUnavailable):
        store.put("k", b"")
    with pytest.raises(StoreUnavailable):
        list(store.list(""))
