"""A cloud on this machine: an S3 server, a bucket as recommended, a node. What `up`, `down` and `run` do.

Nothing is needed but Python: LocalStack runs in host mode, in an environment of its own; `--moto` takes
moto, which comes with Firn's extra `dev`. Both forget their objects when they end, so the node's data goes
with them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from service.cli.dev import DEV_SETTINGS
from service.cli.embedded_s3 import FOREIGN

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".cache" / "local-cloud"
CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
URL: Final = "s3://firn/local"
START_S: Final = 90.0
STOP_S: Final = 20.0
_FIRN: Final = (sys.executable, "-m", "service.cli.main")


@dataclass(frozen=True, slots=True)
class Started:
    """A process of ours; `since` tells it from another that has its id by now."""

    what: str
    pid: int
    since: str


@dataclass(slots=True)
class Cloud:
    """What is up, as `state.json` keeps it."""

    endpoint: str = ""
    bootstrap: str = ""
    http: str = ""
    processes: list[Started] = field(default_factory=list)


class Failure(Exception):
    """What cannot be done, in words."""


def say(words: str) -> None:
    print(f"firn: {words}", file=sys.stderr, flush=True)


# -- processes that outlive this one


def since(pid: int) -> str | None:
    """When the process `pid` began, in the system's own words; None where it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, began = done.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else began.strip()


def is_up(one: Started) -> bool:
    return since(one.pid) == one.since


def start(
    what: str, command: Sequence[str], env: Mapping[str, str], log: Path
) -> tuple[Started, subprocess.Popen[bytes]]:
    """A process in a session of its own, so that Ctrl-C here and the end of this shell are not its end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    return Started(what, process.pid, since(process.pid) or ""), process


def end(one: Started) -> None:
    """SIGTERM, and SIGKILL for one that does not listen; nothing where it has ended already."""
    for number, seconds in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        if not is_up(one):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, number)
        deadline = time.monotonic() + seconds
        while is_up(one) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)
            time.sleep(0.05)
    raise Failure(f"{one.what} (process {one.pid}) does not end")


def wait_for(what: str, process: subprocess.Popen[bytes], log: Path, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not reached():
        if process.poll() is not None:
            fail_with(f"{what} did not start", log)
        if time.monotonic() > deadline:
            fail_with(f"{what} was not ready within {START_S:.0f} s", log)
        time.sleep(0.1)


def fail_with(words: str, log: Path) -> NoReturn:
    lines = log.read_text(errors="replace").splitlines()[-20:]
    raise Failure("\n".join([f"{words}; its log, {log}, ends:", *lines]))


def free_port(family: socket.AddressFamily, host: str, port: int) -> int:
    """`port`, if nobody has it; another that nobody has, if it is 0."""
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as e:
            raise Failure(
                f"{host} port {port}: {e.strerror}; choose another, or 0 for a free one "
                "(--s3-port, --port, --http-port)"
            ) from e
        found: int = one.getsockname()[1]
        return found


# -- S3 servers


def serve_s3(moto: bool, port: int, folder: Path) -> Cloud:
    """Start moto or LocalStack on `port`, 0 for a free one; returns a cloud of it alone once it answers.

    What was started is written down in `folder` at once: whoever is killed while it waits leaves nothing
    that nobody knows of.
    """
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    folder.mkdir(parents=True, exist_ok=True)
    if moto:
        what, address = "moto", "127.0.0.1"
        port = free_port(socket.AF_INET, address, port)
        command = [sys.executable, "-m", "moto.server", "-H", address, "-p", str(port)]
        endpoint, health = f"http://{address}:{port}", "/moto-api/"
    else:
        what, address = "LocalStack", "::1"
        python = subprocess.run(
            [ROOT / "localstack" / "install"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()
        port = free_port(socket.AF_INET6, address, port)
        # -P: or the folder localstack/ of whoever calls would stand before the package of that name.
        command = [python, "-P", "-m", "localstack.runtime.main"]
        # An IPv4 host in GATEWAY_LISTEN is ignored and every interface opened, so it is [::1].
        env |= {
            "SERVICES": "s3", "EAGER_SERVICE_LOADING": "1", "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1", "DNS_ADDRESS": "0", "OVERRIDE_IN_DOCKER": "0",
            "GATEWAY_LISTEN": f"[{address}]:{port}", "LOCALSTACK_VOLUME_DIR": str(folder / "localstack"),
        }  # fmt: skip
        env.pop("PYTHONPATH", None)
        endpoint, health = f"http://[{address}]:{port}", "/_localstack/health"
    began, log = time.monotonic(), folder / "s3.log"
    started, process = start(what, command, env, log)
    cloud = Cloud(endpoint, processes=[started])
    write_state(folder, cloud)
    wait_for(what, process, log, lambda: answers(endpoint + health))
    say(f"{what} on {endpoint} after {time.monotonic() - began:.1f} s")
    return cloud


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    return True


# -- up, down, run


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One `up` or `down` at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    one = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another up or down")
            fcntl.flock(one, fcntl.LOCK_EX)
        yield
    finally:
        os.close(one)


def up(args: argparse.Namespace) -> int:
    with alone(args.dir):
        return up_alone(args)


def up_alone(args: argparse.Namespace) -> int:
    began = time.monotonic()
    cloud = read_state(args.dir)
    if cloud.processes and all(map(is_up, cloud.processes)):
        say("it is up already; localstack/down ends it")
        show(cloud, args.dir)
        return 0
    take_down(args.dir)
    try:
        cloud = bring_up(args)
    except BaseException:
        take_down(args.dir)
        raise
    say(f"up after {time.monotonic() - began:.1f} s; localstack/down ends it")
    show(cloud, args.dir)
    return 0


def bring_up(args: argparse.Namespace) -> Cloud:
    folder: Path = args.dir
    for port in (args.port, args.http_port):
        free_port(socket.AF_INET, "127.0.0.1", port)
    cloud = serve_s3(args.moto, args.s3_port, folder)
    env = {**{name: value for name, value in os.environ.items() if name not in FOREIGN}, **CREDENTIALS}
    made = subprocess.run(
        [*_FIRN, "bucket", "create", URL, "--endpoint", cloud.endpoint],
        env=env,
        stdout=sys.stderr,
        check=False,
    )
    if made.returncode:
        raise Failure(f"the bucket of {URL} could not be made as recommended")
    settings = {
        **DEV_SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{args.port}",
        "log.dirs": str(folder / "data"),
        "firn.http.listener": f"127.0.0.1:{args.http_port}",
        "firn.remote.url": URL,
        "firn.remote.s3.endpoint": cloud.endpoint,
        **dict(args.set),
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    log = folder / "node.log"
    node, process = start("the node", [*_FIRN, "server", *options], env, log)
    cloud.processes.append(node)
    write_state(folder, cloud)
    wait_for("the node", process, log, lambda: said(log, "ready: node ") != "")
    cloud.bootstrap = said(log, "ready: node ").rpartition(" ")[2]
    cloud.http = said(log, "metrics and health on ").rpartition(" ")[2]
    write_state(folder, cloud)
    return cloud


def said(log: Path, words: str) -> str:
    """The whole line with `words` in a log, "" where there is none yet."""
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    return next((line.strip() for line in lines if words in line and line.endswith("\n")), "")


def show(cloud: Cloud, folder: Path) -> None:
    """What is where for people on stderr; what to export on stdout, fit for `eval`."""
    say(f"node {cloud.bootstrap}, metrics {cloud.http}/metrics, archive {URL} at {cloud.endpoint}")
    say(f"logs in {folder}")
    exports = {
        "AWS_ENDPOINT_URL": cloud.endpoint,
        **CREDENTIALS,
        "FIRN_BOOTSTRAP": cloud.bootstrap,
        "FIRN_URL": URL,
    }
    for name, value in exports.items():
        print(f"export {name}={shlex.quote(value)}")
    programs = str(ROOT / ".venv" / "bin")
    if shutil.which("firn") != f"{programs}/firn":
        print(f'export PATH={shlex.quote(programs)}:"$PATH"')


def down(args: argparse.Namespace) -> int:
    ended = []
    if args.dir.exists():
        with alone(args.dir):
            ended = take_down(args.dir) + take_down_runs(args.dir)
    say(f"ended: {', '.join(ended)}" if ended else "nothing of it is up")
    return 0


def take_down_runs(folder: Path) -> list[str]:
    """End the servers of `run`s that were killed."""
    ended = []
    for left in folder.glob("run-*"):
        number = left.name.removeprefix("run-")
        if number.isdecimal() and since(int(number)) is None:
            ended += take_down(left)
            shutil.rmtree(left, ignore_errors=True)
    return ended


def take_down(folder: Path) -> list[str]:
    """End what is up, the node first, and remove its data; returns what was ended."""
    cloud = read_state(folder)
    ended = []
    for one in reversed(cloud.processes):
        if is_up(one):
            end(one)
            ended.append(one.what)
    for leftover in ("data", "localstack"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    (folder / "state.json").unlink(missing_ok=True)
    return ended


def run(args: argparse.Namespace) -> int:
    with s3_for_a_while(args.moto, args.dir) as endpoint:
        env = {**os.environ, "FIRN_LOCALSTACK": endpoint}
        return subprocess.run(args.command, env=env, check=False).returncode


@contextlib.contextmanager
def s3_for_a_while(moto: bool, folder: Path) -> Iterator[str]:
    take_down_runs(folder)
    own = folder / f"run-{os.getpid()}"
    try:
        yield serve_s3(moto, 0, own).endpoint
    finally:
        take_down(own)
        shutil.rmtree(own, ignore_errors=True)


def read_state(folder: Path) -> Cloud:
    try:
        found = json.loads((folder / "state.json").read_text())
        processes = [Started(**one) for one in found.pop("processes")]
        return Cloud(**found, processes=processes)
    except FileNotFoundError:
        return Cloud()
    except (ValueError, TypeError, KeyError) as e:
        raise Failure(
            f"{folder / 'state.json'} is damaged ({e}): end what it started by hand, and remove it"
        ) from e


def write_state(folder: Path, cloud: Cloud) -> None:
    file = folder / "state.json"
    file.with_suffix(".new").write_text(json.dumps(asdict(cloud), indent=1) + "\n")
    file.with_suffix(".new").replace(file)


def setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, found {text!r}")
    return key, value


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="localstack", description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(required=True)
    going_up = actions.add_parser("up", prog="localstack/up", help="start everything")
    going_up.add_argument(
        "--s3-port", type=int, default=4566, metavar="N", help="0 for a free one (default: 4566)"
    )
    going_up.add_argument("--port", type=int, default=9092, metavar="N", help="the node's (default: 9092)")
    going_up.add_argument(
        "--http-port", type=int, default=9464, metavar="N", help="of its metrics (default: 9464)"
    )
    going_up.add_argument(
        "--set", action="append", default=[], type=setting, metavar="KEY=VALUE", help="a setting of the node"
    )
    going_up.set_defaults(do=up)
    going_down = actions.add_parser("down", prog="localstack/down", help="end everything")
    going_down.set_defaults(do=down)
    running = actions.add_parser("run", prog="localstack/run", help="run a command with an S3 server up")
    running.set_defaults(do=run)
    for one in (going_up, running):
        one.add_argument("--moto", action="store_true", help="moto instead of LocalStack")
    for one in (going_up, going_down, running):
        one.add_argument(
            "--dir", type=Path, default=FOLDER, help="logs, data and state (default: %(default)s)"
        )
    running.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(given)
    if "command" in args and not args.command:
        running.error("a command is missing")
    return args


def main(given: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = arguments(given)
    args.dir = args.dir.absolute()
    try:
        code: int = args.do(args)
    except (Failure, OSError, subprocess.CalledProcessError) as e:
        say(str(e))
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
