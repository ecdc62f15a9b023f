"""Entry point of `firn`. Importing it, and `firn --help`, uses the standard library only."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from io import TextIOWrapper

from service.cli.address import fill_in
from service.cli.manual import add_pages

_SPEAK_KAFKA = frozenset(
    {
        "server", "format", "dev", "topic", "group", "transaction", "acl", "user", "quota", "tiers",
        "console", "cluster", "config", "offsets", "log-dirs", "produce", "consume", "restore", "erase",
        "rewrite",
    }
)  # fmt: skip
_SHORT = frozenset({"topic", "group", "transaction", "acl", "user", "quota", "config", "offsets", "log-dirs"})
_COMMANDS = (
    "server", "format", "dev", "console", "top", "config", "cluster", "topic", "produce", "consume",
    "profile", "offsets", "group", "transaction", "log-dirs", "acl", "user", "quota", "tiers", "dump", "fsck",
    "sweep", "repair", "restore", "erase", "rewrite", "bucket", "pipeline", "pyfiles", "completion",
)  # fmt: skip


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a command line that begins with `command`: a node keeps only what it uses."""
    names = (command,) if command in _COMMANDS else _COMMANDS
    parser = argparse.ArgumentParser(
        prog="firn", description="A tiered-storage log that speaks the Apache Kafka protocol."
    )
    parser.add_argument(
        "--version", action="store_true", help="print version, commit and kind of kernels, and exit"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command")
    for name in names:
        import_module(f"service.cli.{name.replace('-', '_')}").add_parser(subparsers)
    add_pages(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    words = _as_options(sys.argv[1:] if argv is None else argv)
    _mend_streams()
    parser = build_parser(words[0] if words else None)
    args = parser.parse_args(words)
    if args.version:
        from service.base.release import release

        print(release())
        return 0
    if args.command is None:
        parser.print_help()
        return 2
    try:
        if args.command in _SPEAK_KAFKA:
            from service.cli.kio_alone import import_kio_alone

            import_kio_alone()
        fill_in(args, os.environ)
        with _waits_said(args):
            code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt as e:
        return getattr(e, "exit_code", 130)  # of `stopping.Stopped`
    except BrokenPipeError:
        # the reader of the output (`| head`) is gone; keep the interpreter from reporting that at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeEncodeError as e:
        if not _is_half_a_character(e):
            raise
        print(f"firn {args.command}: a name that it was given is not UTF-8", file=sys.stderr)
        return 1
    except Exception as e:
        if not _is_expected(e):
            raise
        print(f"firn {args.command}: {describe(e)}", file=sys.stderr)
        return 1
    return code


def _as_options(words: Sequence[str]) -> Sequence[str]:
    """Return `help [COMMAND …]` and `version`, as other tools have them, as options."""
    match words:
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    return words


def _mend_streams() -> None:
    """Have what is printed go nowhere where a stream is closed (what is for stderr would go to stdout), and
    have escapes for characters that a terminal's encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _waits_said(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Say on stderr that a short command still waits, as it does without a majority of controllers."""
    place = getattr(args, "bootstrap_server", None)
    if args.command not in _SHORT or not place:
        return nullcontext()
    from service.base.told_waits import wait_said

    return wait_said(lambda: print(f"firn {args.command}: still waiting for {place}", file=sys.stderr))


def describe(error: Exception) -> str:
    """Return an error's text, fit for a terminal; for an operating system's error, file and reason."""
    from service.base.errors import ConfigError, RequestError
    from service.base.printable import escaped

    words = str(error) or type(error).__name__
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        words = f"{len(error.problems)} problems:\n{words}"
    if isinstance(error, RequestError):
        from service.client.advice import advised

        words = advised(error)
    if isinstance(error, OSError) and error.strerror:
        words = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return "\n".join(escaped(line) for line in words.split("\n"))


def _is_half_a_character(error: UnicodeEncodeError) -> bool:
    """Return whether this is of bytes of the command line, or escapes in a file, that are no text."""
    return all("\ud800" <= character <= "\udfff" for character in error.object[error.start : error.end])


def _is_expected(error: Exception) -> bool:
    """Return whether the text of `error` is enough for a user; other errors are bugs and show a trace."""
    from service.base.errors import FirnError, InvariantError

    return isinstance(error, (FirnError, OSError, TimeoutError)) and not isinstance(error, InvariantError)


if __name__ == "__main__":
    sys.exit(main())
