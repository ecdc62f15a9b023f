"""`firn dev`: a node and an embedded S3, with no configuration at all."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from service.cli.server import add_log_level_option, add_set_option, serve

BUCKET = "firn"
BUCKET_URL = f"s3://{BUCKET}/dev"
# impatient, so that one sees the tiers move
DEV_SETTINGS = {
    "remote.log.manager.task.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "firn.remote.object.grace.ms": "60000",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "dev",
        help="run a node with an embedded S3",
        description="Run a node whose cold tier is an embedded S3 server (moto), and their web console. "
        "All end with SIGTERM or SIGINT. The embedded S3 keeps its objects only as long as it runs.",
    )
    parser.add_argument(
        "--port", type=int, default=9092, help="the node's port, 0 for a free one (default: 9092)"
    )
    parser.add_argument(
        "--http-port",
        type=int,
        default=0,
        help="the port of metrics and health over HTTP (default: 0, a free one)",
    )
    parser.add_argument(
        "--console-port",
        type=int,
        default=0,
        help="the port of the web console (default: 0, a free one)",
    )
    parser.add_argument("--no-console", action="store_true", help="without the web console")
    parser.add_argument(
        "--dir",
        type=Path,
        help="keep the node's data here; must be empty (default: a temporary directory, removed at the end)",
    )
    add_set_option(parser)
    add_log_level_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from functools import partial

    from service.cli.dev_console import with_console
    from service.cli.embedded_s3 import FOREIGN, EmbeddedS3, environment
    from service.config.settings import BrokerConfig

    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated_is_interrupted())
        directory = stack.enter_context(_data_directory(args.dir))
        s3 = stack.enter_context(EmbeddedS3(BUCKET))
        config = BrokerConfig.from_properties(
            {
                "listeners": f"PLAINTEXT://127.0.0.1:{args.port}",
                "log.dirs": str(directory),
                "firn.http.listener": f"127.0.0.1:{args.http_port}",
                "firn.remote.url": BUCKET_URL,
                "firn.remote.s3.endpoint": s3.endpoint,
                **DEV_SETTINGS,
                **dict(args.set),
            }
        )
        for name in FOREIGN:
            os.environ.pop(name, None)
        os.environ.update(environment())
        print(f"s3: {s3.endpoint}", f"bucket: {BUCKET_URL}", f"data: {directory}", sep="\n")
        print(f"to look into the bucket: export AWS_ENDPOINT_URL={s3.endpoint} {_keys()}", flush=True)
        beside = None
        if not args.no_console:
            beside = partial(
                with_console, node_id=config.node_id, port=args.console_port, log_level=args.log_level
            )
        return serve(config, args.log_level, beside)


def _keys() -> str:
    from service.cli.embedded_s3 import CREDENTIALS

    return " ".join(f"{name}={CREDENTIALS[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))


@contextlib.contextmanager
def _data_directory(chosen: Path | None) -> Iterator[Path]:
    from service.base.errors import ConfigError

    if chosen is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="firn-dev-") as temporary:
            yield Path(temporary)
        return
    if chosen.exists() and any(chosen.iterdir()):
        raise ConfigError(
            f"{chosen} is not empty: the embedded S3 forgets its objects when it ends, so a node cannot "
            "go on from its old data; choose an empty directory, or run 'firn server' with a store that stays"
        )
    chosen.mkdir(parents=True, exist_ok=True)
    yield chosen


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Until the node takes the signals over, and after it has ended, SIGTERM unwinds as Ctrl-C does."""
    import signal
    from types import FrameType

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
