"""Simple commands of a shell's text, as far as documents need it: pipes, lists, quotes, here documents."""

from __future__ import annotations

import re
import shlex

SUBSTITUTED = "$SUBSTITUTED"
"""Stands for what a command substitution would print."""
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_INNER = re.compile(r"[$<>]\(([^()]*)\)")
_NUMBERED = re.compile(r"(?<=\s)[012](?=[<>])")
_PUNCTUATION = ";&|()<>\n"
_KEYWORDS = {"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "!", "{", "}", "time"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def typed(console: str) -> str:
    """Return what is typed of a block that shows a terminal: lines behind ``$``, and those they go on in."""
    lines, goes_on = [], False
    for line in console.splitlines():
        if goes_on or line.startswith("$ "):
            lines.append(line if goes_on else line[2:])
            goes_on = line.endswith("\\")
    return "".join(f"{line}\n" for line in lines)


def commands(text: str) -> list[tuple[str, ...]]:
    """Return the words of each simple command, without assignments and redirections; also of those whose
    output is substituted. Raises `ValueError` for quotes that do not end."""
    text = _COMMENT.sub(r"\1", _without_here_documents(text)).replace("\\\n", " ")
    inner = []
    while (found := _INNER.search(text)) is not None:
        inner.append(found[1])
        text = text[: found.start()] + SUBSTITUTED + text[found.end() :]
    outer = [one for words in _split(text) if (one := _bare(words))]
    return [*(one for part in inner for one in commands(part)), *outer]


def _without_here_documents(text: str) -> str:
    kept, end = [], None
    for line in text.splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        found = _HERE.search(line)
        if found is not None:
            end, line = found[2], line[: found.start()] + line[found.end() :]
        kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def _split(text: str) -> list[list[str]]:
    lexer = shlex.shlex(_NUMBERED.sub("", text), posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    found: list[list[str]] = [[]]
    is_file = False
    for token in lexer:
        if token and set(token) <= set(_PUNCTUATION):
            is_file = bool({"<", ">"} & set(token))
            if not is_file:
                found.append([])
        elif is_file:
            is_file = False
        else:
            found[-1].append(token)
    return found


def _bare(words: list[str]) -> tuple[str, ...]:
    """Return a command without the assignments and the keywords in front of it."""
    for index, word in enumerate(words):
        if word in ("for", "case"):
            return ()
        if word not in _KEYWORDS and not _ASSIGNMENT.fullmatch(word):
            return tuple(words[index:])
    return ()
