"""Dockerfile, compose file and chart: what can be said without a runtime; the chart's part where helm is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.trying.composed import services
from service.base.properties import parse_properties
from service.cli.main import build_parser
from service.config.environment import of_environment, variable_key
from service.config.given import gather
from service.config.settings import BrokerConfig
from tests.support.processes import REPOSITORY
from tests.support.requirements import promtool

DEPLOY = REPOSITORY / "deploy"
CHART = DEPLOY / "helm" / "firn"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
INSTRUCTIONS = re.sub(
    r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text("utf-8"))
)
"""The Dockerfile without its remarks, each instruction on one line."""
STAGES = re.split(r"(?m)^FROM ", INSTRUCTIONS)[1:]
HEALTH = DEPLOY / "image" / "firn-health"


def instructions(stage: str, name: str) -> list[str]:
    return re.findall(rf"(?m)^{name} +(.*)$", stage)


# -- the image


def test_the_image_runs_as_a_user_with_a_fixed_number() -> None:
    last = STAGES[-1]
    assert instructions(last, "USER") == ["10001:10001"]
    assert "useradd --uid 10001" in last
    assert "groupadd --gid 10001" in last
    # Another user, as OpenShift gives to each namespace, is of group 0.
    assert "install -d -o firn -g root -m 0770 /var/lib/firn" in last
    assert last.rindex("\nUSER ") > last.rindex("\nRUN ")


def test_the_images_first_process_hands_signals_on() -> None:
    (entrypoint,) = instructions(STAGES[-1], "ENTRYPOINT")
    assert json.loads(entrypoint)[:2] == ["/usr/bin/tini", "--"]
    assert instructions(STAGES[-1], "STOPSIGNAL") == ["SIGTERM"]
    assert instructions(STAGES[-1], "VOLUME") == ["/var/lib/firn"]
    assert "firn-health" in instructions(STAGES[-1], "HEALTHCHECK")[0]


def test_compilers_and_pip_stay_in_the_first_stage() -> None:
    assert "gcc" in STAGES[0]
    assert "gcc" not in STAGES[1]
    assert "venv --without-pip /opt/firn" in STAGES[0]
    assert [line for line in instructions(STAGES[1], "COPY") if "--from=build" in line] == [
        "--from=build /opt/firn /opt/firn"
    ]


def test_all_that_the_image_copies_is_there_and_not_ignored() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    assert ignored[1] == "*"
    allowed = tuple(line[1:] for line in ignored if line.startswith("!"))
    copied = [line.split()[:-1] for line in instructions(INSTRUCTIONS, "COPY") if "--from=" not in line]
    paths = [path for words in copied for path in words if not path.startswith("--")]
    assert len(paths) >= 8
    for path in paths:
        assert (REPOSITORY / path).exists(), path
        assert path.startswith(allowed), path


def pins(name: str) -> dict[str, str]:
    text = (DEPLOY / "image" / name).read_text("utf-8")
    found = dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+) \\$", text))
    assert len(found) == len(re.findall(r"(?m)^\S+==", text))
    assert len(re.findall(r"(?m)^    --hash=sha256:[0-9a-f]{64}", text)) >= len(found)
    return found


def test_the_image_installs_the_versions_that_are_tried_together() -> None:
    """`deploy/image/lock` makes both files anew."""
    lines = (REPOSITORY / ".ci" / "constraints.txt").read_text("utf-8").splitlines()
    tried = dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)
    found = {**pins("requirements.txt"), **pins("build-requirements.txt")}
    assert {"kio", "obstore", "confluent-kafka", "cryptography", "aioboto3", "cython"} <= found.keys()
    # pip itself is among no constraints.
    assert {name: version for name, version in found.items() if name != "pip"} == {
        name: tried[name] for name in found if name != "pip"
    }


@contextmanager
def answering(status: int) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server with one answer; yields its URL and what it was asked."""
    seen: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.path} {self.headers['Authorization']}")
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "asked", "code"),
    [(200, "healthz", 0), (503, "readyz", 1), (401, "healthz", 1)],
)
def test_the_health_check_passes_on_200_alone(status: int, asked: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with answering(status) as (url, seen):
        environ = {"FIRN_IMAGE_HTTP": url, "FIRN_HTTP_TOKEN_FILE": str(tmp_path / "token")}
        command = [sys.executable, "-IS", str(HEALTH), asked]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert bool(done.stderr) == bool(code)
    assert seen == [f"/{asked} Bearer secret"]


def test_the_health_check_finds_a_listener_at_another_port() -> None:
    with answering(200) as (url, seen):
        port = url.rpartition(":")[2]
        for listener in (f"0.0.0.0:{port}", f":{port}"):
            command = [sys.executable, "-IS", str(HEALTH)]
            assert subprocess.run(command, env={"FIRN_HTTP_LISTENER": listener}, check=False).returncode == 0
    assert seen == ["/healthz None"] * 2


# -- compose


def test_each_setting_of_the_compose_file_is_a_key() -> None:
    all_named = {name for one in services(COMPOSE, {}).values() for name in one.environ}
    named = {name for name in all_named if re.match("FIRN_(?!IMAGE_)", name)}
    assert len(named) >= 12
    assert not {name for name in named if variable_key(name) is None}


def test_the_compose_files_nodes_are_one_cluster() -> None:
    found = services(COMPOSE, {})
    configs = {}
    for number in (1, 2, 3):
        given = gather(None, (), found[f"firn-{number}"].environ)
        config = given.checked(BrokerConfig.from_properties)
        assert given.warnings() == []
        configs[number] = config
        assert config.node_id == number
        assert [str(one) for one in config.cluster.advertised_listeners] == [
            f"PLAINTEXT://firn-{number}:9092",
            f"HOST://localhost:{number}9092",
        ]
    assert len({config.cluster_id for config in configs.values()}) == 1
    voters = found["firn-1"].environ["FIRN_IMAGE_VOTERS"].split(",")
    assert [one.partition("@")[2] for one in voters] == [
        str(one).partition("://")[2]
        for config in configs.values()
        for one in config.cluster.advertised_controller_listeners
    ]


def test_the_compose_file_leaves_time_and_publishes_to_this_machine_alone() -> None:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
    for name, service in document["services"].items():
        assert all(one.startswith("127.0.0.1:") for one in service.get("ports", ())), name
        assert name == "bucket" or service["healthcheck"]["test"], name
        if name.startswith("firn-"):
            assert service["stop_grace_period"] == "3m"
            assert service["read_only"]
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in document["volumes"] or (COMPOSE.parent / source).resolve().is_file(), volume


def test_prometheus_understands_the_compose_files_configuration(tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "infra" / "monitoring" / "firn.rules.yml", tmp_path)
    text = (DEPLOY / "compose" / "prometheus.yml").read_text("utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus", str(tmp_path)))
    subprocess.run([promtool(), "check", "config", tmp_path / "prometheus.yml"], check=True)
    (job,) = yaml.safe_load(text)["scrape_configs"]
    nodes = [name for name in services(COMPOSE, {}) if name.startswith("firn-")]
    assert job["static_configs"] == [{"targets": [f"{name}:9464" for name in nodes]}]


# -- the chart


def helm() -> str:
    for path in (REPOSITORY / ".cache" / "deploy" / "helm", shutil.which("helm")):
        if path and Path(path).exists():
            return str(path)
    pytest.skip("helm is not installed: .ci/fetch-deploy brings it")


def rendered(*options: str) -> list[dict[str, Any]]:
    command = [helm(), "template", "firn", str(CHART), "-n", "prod", "--kube-version", "1.36.0", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


VALUES = sorted(path.name for path in (CHART / "ci").glob("*.yaml"))


def test_the_chart_has_values_to_try_it_with() -> None:
    assert VALUES == ["archive-values.yaml", "minimal-values.yaml", "secured-values.yaml"]
    for name in ("firn.rules.yml", "firn.dashboard.json"):
        assert (CHART / "files" / name).resolve() == REPOSITORY / "infra" / "monitoring" / name


def test_the_charts_console_changes_nothing_unless_it_is_told_to() -> None:
    secured = ("-f", str(CHART / "ci" / "secured-values.yaml"))

    def console(*options: str) -> list[str]:
        found = of_kind(rendered(*secured, *options), "Deployment")["firn-console"]
        arguments: list[str] = found["spec"]["template"]["spec"]["containers"][0]["args"]
        return arguments

    assert "--allow-changes" not in console()
    allowing = console("--set", "console.allowChanges=true")
    assert "--allow-changes" in allowing
    parser = build_parser()
    assert parser.parse_args(allowing).allow_changes


def test_the_charts_alerts_link_to_where_the_runbooks_are() -> None:
    def links(*options: str) -> set[str]:
        least = ("-f", str(CHART / "ci" / "minimal-values.yaml"))
        documents = rendered(*least, "--set", "metrics.prometheusRule.enabled=true", *options)
        (found,) = of_kind(documents, "PrometheusRule").values()
        alerts = [rule for group in found["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
        return {rule["annotations"]["runbook_url"].partition("#")[0] for rule in alerts}

    assert links() == {"docs/runbooks.md"}
    address = "https://docs.example.com/firn/runbooks.html"
    assert links("--set", f"metrics.prometheusRule.runbooks={address}") == {address}


@pytest.mark.parametrize("values", VALUES)
def test_the_charts_nodes_have_settings_that_a_node_takes(values: str, tmp_path: Path) -> None:
    documents = rendered("-f", str(CHART / "ci" / values))
    configs = of_kind(documents, "ConfigMap")
    for name, found in of_kind(documents, "StatefulSet").items():
        pod = found["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        component = found["metadata"]["labels"]["app.kubernetes.io/component"]
        file = tmp_path / f"{name}.properties"
        file.write_text(configs[f"firn-{component}"]["data"]["server.properties"])
        start = found["spec"].get("ordinals", {}).get("start", 0)
        environ = {one["name"]: one.get("value", "zone-a") for one in container["env"]}
        environ |= {"POD_NAME": f"{name}-{start}", "POD_INDEX": str(start)}
        given = gather(file, (), environ)
        config = given.checked(BrokerConfig.from_properties)
        assert given.warnings() == []
        assert of_environment(environ, ()).unknown == ()
        assert config.node_id == start
        told = {*config.cluster.advertised_listeners, *config.cluster.advertised_controller_listeners}
        assert {one.host for one in told} == {f"{name}-{start}.firn-nodes.prod.svc.cluster.local"}
        assert {one.port for one in told} <= {one["containerPort"] for one in container["ports"]}
        assert parse_properties(file.read_text())["log.dirs"].startswith("/var/lib/firn/")


def test_a_lost_majority_restarts_no_node_of_the_chart() -> None:
    """`/readyz` says 503 to a node that waits for its controllers; only `/healthz` decides who is killed."""
    for found in of_kind(rendered("-f", str(CHART / "ci" / "secured-values.yaml")), "StatefulSet").values():
        pod = found["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["exec"]["command"] == ["firn-health", "readyz"]
        assert found["spec"]["podManagementPolicy"] == "Parallel"
        assert pod["terminationGracePeriodSeconds"] == 180
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_charts_names_lead_to_pods_before_they_are_ready() -> None:
    documents = rendered("-f", str(CHART / "ci" / "minimal-values.yaml"))
    services_of = of_kind(documents, "Service")
    assert services_of["firn-nodes"]["spec"]["publishNotReadyAddresses"]
    assert services_of["firn-nodes"]["spec"]["clusterIP"] == "None"
    (nodes,) = of_kind(documents, "StatefulSet").values()
    labels = nodes["spec"]["template"]["metadata"]["labels"]
    for service in services_of.values():
        assert service["spec"]["selector"].items() <= labels.items()
    (budget,) = of_kind(documents, "PodDisruptionBudget").values()
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("security.mode=", "value must be one of 'tls', 'plaintext'"),
        ("cluster.form=", "does not match pattern"),
        ("cluster.id=mine", "does not match pattern"),
        ("security.mode=tls", "secretName"),
        ("brokers.count=3", "additional properties 'count' not allowed"),
        ("console.enabled=true", "tokenSecretName"),
        ("config.log\\.dirs=/data", "config.log.dirs: the chart sets this key"),
        ("nodes.replicas=1", "is no majority of cluster.initialNodes=3"),
        ("nodes.roles=controller", "no brokers"),
        # A node refuses keys that have no effect, so these pods would never start.
        ("remote.region=eu-central-1", "remote.region and remote.endpoint are of remote.url=s3://"),
        ("remote.endpoint=https://s3", "remote.region and remote.endpoint are of remote.url=s3://"),
        ("remote.cache.enabled=true", "remote.url is empty"),
        ("fullnameOverride=a.b", "does not match pattern"),
        ("nameOverride=a.b", "does not match pattern"),
        ("podLabels.firn/node=x", "invalid propertyName 'firn/node'"),
    ],
)
def test_values_that_lack_or_contradict_are_refused(setting: str, said: str) -> None:
    values = str(CHART / "ci" / "minimal-values.yaml")
    command = [helm(), "template", str(CHART), "--kube-version", "1.36.0", "-f", values]
    done = subprocess.run([*command, "--set", setting], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert said in done.stderr


def test_another_user_may_be_left_to_the_cluster() -> None:
    """OpenShift gives each namespace numbers of its own, and refuses pods that bring theirs."""
    words = [
        word
        for key in ("runAsUser", "runAsGroup", "fsGroup")
        for word in ("--set", f"podSecurityContext.{key}=null")
    ]
    documents = rendered("-f", str(CHART / "ci" / "archive-values.yaml"), *words)
    pods = [*of_kind(documents, "StatefulSet").values(), *of_kind(documents, "Deployment").values()]
    assert len(pods) == 3
    for found in pods:
        context = found["spec"]["template"]["spec"]["securityContext"]
        assert {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(context)
        assert context["runAsNonRoot"]


@contextmanager
def api_server(replicas: int) -> Iterator[str]:
    """An API server that has the chart's StatefulSet with so many nodes; yields its URL."""
    there = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "firn", "namespace": "prod"},
        "spec": {"replicas": replicas},
    }
    resource = {
        "name": "statefulsets",
        "singularName": "",
        "namespaced": True,
        "kind": "StatefulSet",
        "verbs": ["get"],
    }
    group = {"groupVersion": "apps/v1", "version": "v1"}
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [{"name": "apps", "versions": [group]}],
        },
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
        "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [resource]},
        "/apis/apps/v1/namespaces/prod/statefulsets/firn": there,
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            data = json.dumps(
                found or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            )
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data.encode())

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("replicas", "code"), [(5, 0), (4, 0), (3, 1), (2, 1)])
def test_nodes_go_one_at_a_time_as_those_that_are_gone_vote_still(replicas: int, code: int) -> None:
    values = str(CHART / "ci" / "minimal-values.yaml")
    with api_server(5) as url:
        command = [helm(), "template", "firn", str(CHART), "-n", "prod", "-f", values, "--dry-run=server"]
        command += [
            "--kube-apiserver",
            url,
            "--kube-version",
            "1.36.0",
            "--set",
            f"nodes.replicas={replicas}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("one at a time" in done.stderr) == bool(code)
