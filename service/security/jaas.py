"""Value of `sasl.jaas.config`: one login module and its options, in Kafka's grammar. [P]

Source: Kafka ``JaasConfig`` and ``JaasContext``, and the tokens of Java's ``StreamTokenizer``: words, quoted
strings with escapes, numbers (which are no values: quote them), ``//``, ``/* */`` and a lone ``/`` as
comments. No error repeats a value, which may be a password; nor, unlike Kafka's, a key or a flag, which may
be a piece of one that is quoted wrongly.

>>> read_jaas('org.apache.kafka.common.security.scram.ScramLoginModule required;').options
{}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from service.base.errors import ConfigError

_PREFIX: Final = "org.apache.kafka.common.security."
PLAIN_MODULE: Final = f"{_PREFIX}plain.PlainLoginModule"
SCRAM_MODULE: Final = f"{_PREFIX}scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = f"{_PREFIX}oauthbearer.OAuthBearerLoginModule"
LOGIN_MODULES: Final = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE)
_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")


@dataclass(frozen=True, slots=True)
class LoginModule:
    """Class name, control flag in upper case, and options, which no ``repr`` shows."""

    name: str
    flag: str
    options: Mapping[str, str] = field(repr=False)


def read_jaas(text: str) -> LoginModule:
    """Return the only login module, which must be one of `LOGIN_MODULES`. Raises `ConfigError`."""
    modules = parse_jaas(text)
    if len(modules) != 1:
        raise ConfigError(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    module = modules[0]
    if module.name not in LOGIN_MODULES:
        raise ConfigError(
            f"JAAS config: login module {module.name[:200]!r} is not supported; there are "
            f"{', '.join(LOGIN_MODULES)}"
        )
    return module


def parse_jaas(text: str) -> tuple[LoginModule, ...]:
    """Return the login modules. Raises `ConfigError`."""
    tokens, modules = _Tokenizer(text), []
    while (token := tokens.next()) is not None:
        modules.append(_parse_module(token, tokens))
    if not modules:
        raise ConfigError("Login module not specified in JAAS config")
    return tuple(modules)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """a quote, ``w`` for a word, ``0`` for a number, else the character itself"""
    value: str | None = None

    @property
    def text(self) -> str:
        return "null" if self.value is None else self.value


_WORD: Final = "w"
_NUMBER: Final = "0"


def _parse_module(first: _Token, tokens: _Tokenizer) -> LoginModule:
    flag = tokens.next()
    if flag is None:
        raise ConfigError("Login module control flag not specified in JAAS config")
    if flag.value is None:
        raise ConfigError("Login module control flag is not available in the JAAS config")
    if flag.value.upper() not in _FLAGS:
        raise ConfigError("Invalid login module control flag in JAAS config")
    options: dict[str, str] = {}
    number = 0
    while (token := tokens.next()) is not None and token.kind != ";":
        number += 1
        equals = tokens.next()
        value = tokens.next() if equals is not None and equals.kind == "=" else None
        if value is None or value.value is None:
            raise ConfigError(f"Value not specified for key {number} in JAAS config")
        options[token.text] = value.value
    if token is None:
        raise ConfigError("JAAS config entry not terminated by semi-colon")
    if not first.value:
        raise ConfigError("Login module name in JAAS config is no word")
    return LoginModule(first.value, flag.value.upper(), options)


_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL: Final = "01234567"
_FIRST_OF_THREE: Final = "0123"
"""An escape has three digits at most, and a value of at most 255."""
_LAST_BLANK: Final = " "
_FIRST_FOREIGN: Final = "\xa0"
"""First of the characters that are all letters to Java."""


def _is_letter(char: str) -> bool:
    return (char.isascii() and char.isalpha()) or char in "-_$" or char >= _FIRST_FOREIGN


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9" or char in ".-"


class _Tokenizer:
    """Java's ``StreamTokenizer`` with the settings of ``JaasConfig``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> _Token | None:
        """Return the next token; None at the end."""
        text = self._text
        while self._skip_blanks():
            char = text[self._at]
            if char == "/":
                if not self._skip_comment():
                    return None
                continue
            if _is_digit(char):
                return self._number(char)
            if _is_letter(char):
                return self._word()
            self._at += 1
            return self._quoted(char) if char in "\"'" else _Token(char)
        return None

    def _skip_blanks(self) -> bool:
        """Return whether there is something behind the blanks."""
        text = self._text
        while self._at < len(text) and text[self._at] <= _LAST_BLANK:
            self._at += 1
        return self._at < len(text)

    def _skip_comment(self) -> bool:
        """Skip a comment; False if the text ends within."""
        text = self._text
        if text.startswith("/*", self._at):
            # Java compares with the character before, which for the first is none: "/*/" ends nothing.
            end = text.find("*/", self._at + 2)
            self._at = len(text) if end < 0 else end + 2
            return end >= 0
        self._at += 2  # of a lone "/" Java swallows the next character, too, be it the line's end
        while self._at < len(text) and text[self._at] not in "\r\n":
            self._at += 1
        return True

    def _number(self, char: str) -> _Token:
        text = self._text
        self._at += 1
        if char == "-" and not (
            self._at < len(text) and (text[self._at] == "." or text[self._at] in "0123456789")
        ):
            return _Token("-")
        has_dot = char == "."
        while self._at < len(text):
            char = text[self._at]
            if char == "." and not has_dot:
                has_dot = True
            elif not "0" <= char <= "9":
                break
            self._at += 1
        return _Token(_NUMBER)

    def _word(self) -> _Token:
        start, text = self._at, self._text
        while self._at < len(text) and (_is_letter(text[self._at]) or _is_digit(text[self._at])):
            self._at += 1
        return _Token(_WORD, text[start : self._at])

    def _quoted(self, quote: str) -> _Token:
        text, found = self._text, []
        while self._at < len(text) and (char := text[self._at]) not in (quote, "\n", "\r"):
            self._at += 1
            found.append(self._escape() if char == "\\" else char)
        if self._at < len(text) and text[self._at] == quote:
            self._at += 1
        return _Token(quote, "".join(found))

    def _escape(self) -> str:
        text = self._text
        if self._at == len(text):
            return "\uffff"  # what Java makes of the end of the text
        char = text[self._at]
        self._at += 1
        if char not in _OCTAL:
            return _ESCAPES.get(char, char)
        most = self._at + (2 if char in _FIRST_OF_THREE else 1)
        start = self._at - 1
        while self._at < min(most, len(text)) and text[self._at] in _OCTAL:
            self._at += 1
        return chr(int(text[start : self._at], 8))
