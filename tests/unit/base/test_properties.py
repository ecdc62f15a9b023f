"""Java's `.properties` syntax, case by case as `java.util.Properties` reads it."""

import traceback
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.base.properties import parse_properties
from service.base.properties_file import load_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t:\t1", {"a": "1"}),
        ("  a=1", {"a": "1"}),
        ("# comment\n! other\n\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        (r"a\=b=c", {"a=b": "c"}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=x\\", {"a": "x"}),
        (r"a=\t\n\q", {"a": "\t\nq"}),
        (r"a=\u00e9", {"a": "é"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("", {}),
    ],
)
def test_the_java_syntax_is_understood(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_malformed_unicode_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="malformed"):
        parse_properties(r"a=\u12")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties: No such file"):
        load_properties(tmp_path / "nowhere.properties")
    (tmp_path / "binary").write_bytes(b"a=1\nssl.key.password=\xfe\xffgeheim\nb=2\n")
    with pytest.raises(ConfigError, match=r"binary:2: not UTF-8 text$") as error:
        load_properties(tmp_path / "binary")
    assert "0xfe" not in "".join(traceback.format_exception(error.value))
    (tmp_path / "huge").write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="huge: a properties file over"):
        load_properties(tmp_path / "huge")


def test_a_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=3\nlog.dirs=/a,\\\n  /b\n")
    assert load_properties(path) == {"node.id": "3", "log.dirs": "/a,/b"}


def test_a_malformed_escape_is_refused_without_the_value_that_has_it() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_properties("a = b\nssl.key.password = geheim\\u00g1")
    assert str(raised.value) == "malformed \\uxxxx encoding in the value of ssl.key.password"


def test_comments_may_be_in_any_encoding_and_the_mark_of_windows_editors_counts_not(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"\xef\xbb\xbf# f\xfcr alle\r\nnode.id=3\r\n  ! f\xfcr\r\nbroker.rack=a,\\\r\n  b\n")
    assert load_properties(path) == {"node.id": "3", "broker.rack": "a,b"}
    path.write_bytes(b"# a\nbroker.rack=a\\\n# f\xfcr\n")
    with pytest.raises(ConfigError, match=r"properties:3: not UTF-8 text$"):  # a value goes on there
        load_properties(path)


def test_two_escapes_are_one_rare_character_and_half_of_one_is_refused() -> None:
    assert parse_properties(r"a=\ud83d\ude00") == {"a": "😀"}
    with pytest.raises(ConfigError, match=r"^half of a character \(\\uD800 to \\uDFFF\) in the value of a$"):
        parse_properties(r"a=geheim\ud83d")
