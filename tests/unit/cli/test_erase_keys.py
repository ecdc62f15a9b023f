"""Keys of `firn erase`, as they are given: what is no key is refused, and no message has one."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.cli.erase_keys import decoded, lines_of_file
from service.cli.main import main
from service.client.erasures import hashed
from service.records.erasure import filter_hash, hash_key
from service.remote.format.erase_codec import MAX_KEYS

SECRET = b"0123456789abcdef"


def file(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "keys"
    path.write_bytes(data)
    return str(path)


def test_lines_are_keys_and_empty_ones_are_none(tmp_path: Path) -> None:
    name = file(tmp_path, b"one\n\ntwo\r\n thr ee \n")
    assert lines_of_file(name, is_base64=False) == [b"one", b"two", b" thr ee "]


def test_lines_may_be_base64(tmp_path: Path) -> None:
    assert lines_of_file(file(tmp_path, b"AP8=\nb25l\n"), is_base64=True) == [b"\x00\xff", b"one"]


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"one\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert lines_of_file("-", is_base64=False) == [b"one"]


def test_a_byte_order_mark_is_refused_as_it_would_be_part_of_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="byte order mark"):
        lines_of_file(file(tmp_path, b"\xef\xbb\xbfone\n"), is_base64=False)


@pytest.mark.parametrize(
    "data",
    ["one\ntwo\n".encode("utf-16"), "one".encode("utf-16-le"), b"one\rtwo\r", b"one\n\x00\x01\n"],
    ids=["UTF-16 with a mark", "UTF-16", "carriage returns", "binary"],
)
def test_a_file_that_is_no_text_is_refused_as_its_lines_are_no_keys(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"line [12] is no text") as caught:
        lines_of_file(file(tmp_path, data), is_base64=False)
    assert "one" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n\n\r\n"])
def test_a_file_without_keys_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigError, match="it has no key"):
        lines_of_file(file(tmp_path, data), is_base64=False)


def test_too_many_keys_are_refused_and_duplicates_count_once(tmp_path: Path) -> None:
    many = b"".join(b"%d\n" % number for number in range(MAX_KEYS + 1))
    with pytest.raises(ConfigError, match="at most 100000"):
        lines_of_file(file(tmp_path, many), is_base64=False)
    assert len(lines_of_file(file(tmp_path, b"one\n" * 5), is_base64=False)) == 5


def test_a_line_that_is_not_base64_is_named_by_its_line_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        lines_of_file(file(tmp_path, b"b25l\nsecret person\n"), is_base64=True)
    assert str(caught.value).endswith("line 2 is not base64")
    with pytest.raises(ConfigError) as caught:
        decoded(b"secret", "--key-base64 number 1")
    assert "secret" not in str(caught.value)


def test_an_order_has_each_key_once_in_both_forms() -> None:
    hashes, filters = hashed([b"one", b"two", b"one"], SECRET)
    assert hashes == b"".join(sorted([hash_key(SECRET, b"one"), hash_key(SECRET, b"two")]))
    assert filters == b"".join(sorted(filter_hash(one).to_bytes(8) for one in (b"one", b"two")))
    with pytest.raises(ConfigError, match="0 keys"):
        hashed([], SECRET)


@pytest.mark.parametrize("more", [["--before", "2026-01-31T12:00:00Z"], ["--base64"]])
def test_options_for_keys_are_refused_beside_an_id(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = "3f2a7c1e-0000-4000-8000-000000000001"
    assert main(["erase", "verify", one, "--bootstrap-server", "127.0.0.1:1", *more]) == 1
    assert "for keys" in capsys.readouterr().err
