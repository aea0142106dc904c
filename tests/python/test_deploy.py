"""`deploy/`: the manifests fit KubeRay and each other, the images' recipe and the queries hold."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from support import DEADLINE, ROOT, data_files, forebay

import forebay as fb

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kuberay").glob("*.yaml"))
METRICS_PAGE = ROOT / "docs" / "metrics.md"
MIB = 1 << 20
# What `--grace` of the sidecar is when it is not given, in seconds.
GRACE = 20
# Working memory of the decoders, which the budget does not count: docs/loader.md, "Memory".
UNCOUNTED_PER_THREAD = 32 * MIB


def load(name: str, kind: str | None = None) -> Any:
    """One document of a file, by its kind where there are several."""
    documents = [d for d in yaml.safe_load_all((DEPLOY / name).read_text()) if d]
    found = [d for d in documents if kind is None or d["kind"] == kind]
    assert len(found) == 1, f"{name}: {len(found)} documents of kind {kind}"
    return found[0]


def size(text: str) -> int:
    """Bytes of a size, as Kubernetes (10Gi) or Forebay (8GiB) write it."""
    match = re.fullmatch(r"(\d+)([KMGT])iB?", text)
    assert match, text
    return int(match[1]) << 10 * ("KMGT".index(match[2]) + 1)


def only(things: list[Any], **wanted: Any) -> Any:
    """The one thing of a list that has these values."""
    found = [t for t in things if all(t.get(k) == v for k, v in wanted.items())]
    assert len(found) == 1, f"{len(found)} of {wanted}"
    return found[0]


def option(container: dict[str, Any], name: str) -> str:
    arguments = container["args"]
    return arguments[arguments.index(name) + 1]


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container.get("env", [])}


def clusters() -> dict[str, dict[str, Any]]:
    return {
        "raycluster.yaml": load("kuberay/raycluster.yaml")["spec"],
        "rayjob.yaml": load("kuberay/rayjob.yaml", "RayJob")["spec"]["rayClusterSpec"],
    }


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod of every cluster."""
    for name, cluster in clusters().items():
        yield f"{name} head", cluster["headGroupSpec"]["template"]["spec"]
        for group in cluster["workerGroupSpecs"]:
            yield f"{name} {group['groupName']}", group["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@pytest.fixture
def worker() -> dict[str, Any]:
    """The pod with the sidecar."""
    return only(clusters()["raycluster.yaml"]["workerGroupSpecs"], groupName="gpu")["template"][
        "spec"
    ]


@pytest.fixture
def sidecar(worker: dict[str, Any]) -> dict[str, Any]:
    return only(worker["initContainers"], name="forebay")


def validate(kuberay: Path, version: str, *files: Path) -> tuple[int, str]:
    command = [sys.executable, kuberay / "validate.py", kuberay / "jsonschema" / version, *files]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout + done.stderr


def test_the_manifests_are_what_kuberay_takes(kuberay: Path) -> None:
    versions = sorted(folder.name for folder in (kuberay / "jsonschema").iterdir())
    assert versions
    for version in versions:
        status, out = validate(kuberay, version, *MANIFESTS)
        assert (status, out.strip()) == (0, "2 documents 0 errors"), version


def test_a_misspelt_key_of_a_pod_is_found(kuberay: Path, tmp_path: Path) -> None:
    text = (DEPLOY / "kuberay" / "raycluster.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("initContainers:", "initContainer:"))
    status, out = validate(kuberay, "v1.7.0", wrong)
    assert status == 1
    assert "initContainer" in out


def test_the_sidecar_starts_before_the_trainer_and_ends_after_it(
    worker: dict[str, Any], sidecar: dict[str, Any]
) -> None:
    # An init container that restarts is a native sidecar; any other would hold the pod up.
    assert sidecar["restartPolicy"] == "Always"
    assert worker["initContainers"] == [sidecar]
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/readyz", "the trainer finds its socket"
    assert sidecar["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert sidecar["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert worker["terminationGracePeriodSeconds"] > 2 * GRACE


def test_ports_and_paths_agree(worker: dict[str, Any], sidecar: dict[str, Any]) -> None:
    assert sidecar["command"] == ["forebay", "sidecar"]
    port = only(sidecar["ports"], name="forebay-metrics")["containerPort"]
    assert port == 9464
    assert option(sidecar, "--metrics") == f"0.0.0.0:{port}"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert sidecar[probe]["httpGet"]["port"] == "forebay-metrics", probe
    monitor = load("kuberay/podmonitor.yaml")["spec"]
    assert [e["port"] for e in monitor["podMetricsEndpoints"]] == ["forebay-metrics"]
    assert f"EXPOSE {port}" in (DEPLOY / "Dockerfile").read_text()

    trainer = only(worker["containers"], name="ray-worker")
    socket = Path(option(sidecar, "--socket"))
    assert environment(trainer)["FOREBAY_SOCKET"] == str(socket)
    for container in (sidecar, trainer):
        mount = only(container["volumeMounts"], mountPath=str(socket.parent))
        assert "emptyDir" in only(worker["volumes"], name=mount["name"])
        # Both see the same files under the same names, so a plan means the same to both.
        assert only(container["volumeMounts"], name="fsx")["mountPath"] == "/fsx"


def test_the_sidecar_fits_its_memory(sidecar: dict[str, Any]) -> None:
    limits = sidecar["resources"]["limits"]
    uncounted = int(limits["cpu"]) * UNCOUNTED_PER_THREAD
    assert size(limits["memory"]) > size(option(sidecar, "--memory")) + uncounted


def test_the_sidecar_has_no_rights_that_it_does_not_need(
    worker: dict[str, Any], sidecar: dict[str, Any]
) -> None:
    security = sidecar["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert "runAsUser" not in security, "user and group are the pod's: the trainer's too"
    assert only(sidecar["volumeMounts"], name="fsx")["readOnly"] is True
    # With a file system that is read-only, what is kept for later runs needs a volume.
    cache = environment(sidecar)["FOREBAY_CACHE_DIR"]
    volume = only(sidecar["volumeMounts"], mountPath=cache)["name"]
    assert "emptyDir" in only(worker["volumes"], name=volume)


@pytest.mark.parametrize(("name", "pod"), list(pods()), ids=[name for name, _ in pods()])
def test_every_pod(name: str, pod: dict[str, Any]) -> None:
    assert pod["nodeSelector"]["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    # Socket and files are shared by user and group: those of the Ray images, and of the sidecar's.
    user, group = re.findall(r"^USER (\d+):(\d+)$", _dockerfile(), flags=re.MULTILINE)[0]
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
    assert security["fsGroup"] == int(group)
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = set()
    for container in containers(pod):
        limits = container["resources"]["limits"]
        assert container["resources"]["requests"] == limits
        # What asks for no GPU is given none, also where the container runtime would hand out all.
        visible = environment(container).get("NVIDIA_VISIBLE_DEVICES")
        assert visible == (None if "nvidia.com/gpu" in limits else "void")
        # A limit of one container would be a limit of the pod, logs of Ray included, and evict it.
        assert "ephemeral-storage" not in limits
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"].endswith(f":{fb.__version__}")
        mounted |= {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == volumes
    claims = {v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "fsx" in v["name"]}
    assert claims <= {load("kuberay/fsx.yaml", "PersistentVolumeClaim")["metadata"]["name"]}


def test_the_claim_binds_to_the_volume() -> None:
    volume = load("kuberay/fsx.yaml", "PersistentVolume")
    claim = load("kuberay/fsx.yaml", "PersistentVolumeClaim")["spec"]
    assert claim["volumeName"] == volume["metadata"]["name"]
    assert claim["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert claim["accessModes"] == volume["spec"]["accessModes"] == ["ReadWriteMany"]
    wanted = claim["resources"]["requests"]["storage"]
    assert size(wanted) <= size(volume["spec"]["capacity"]["storage"])


# Where the templates of the chart `ray-cluster` put a value of `head` or `worker`.
OF_CONTAINER = {
    "containerEnv": "env",
    "ports": "ports",
    "resources": "resources",
    "securityContext": "securityContext",
    "volumeMounts": "volumeMounts",
}
OF_POD = {
    "initContainers": "initContainers",
    "nodeSelector": "nodeSelector",
    "podSecurityContext": "securityContext",
    "volumes": "volumes",
}
OF_GROUP = ("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams")


def _rendered(values: dict[str, Any], name: str, image: dict[str, str]) -> dict[str, Any]:
    """The pod that the chart makes of its values."""
    known = {*OF_CONTAINER, *OF_POD, *OF_GROUP, "rayVersion"}
    assert set(values) <= known, "a key that no template reads is a key without effect"
    container = {"name": name, "image": f"{image['repository']}:{image['tag']}"}
    container["imagePullPolicy"] = image["pullPolicy"]
    container |= {to: values[key] for key, to in OF_CONTAINER.items() if key in values}
    pod = {to: values[key] for key, to in OF_POD.items() if key in values}
    return {**pod, "containers": [container]}


def test_the_values_of_the_chart_give_the_same_cluster() -> None:
    values = load("kuberay/values.yaml")
    manifest = load("kuberay/raycluster.yaml")
    spec = manifest["spec"]
    group = only(spec["workerGroupSpecs"], groupName="gpu")
    head, worker = values["head"], values["worker"]
    assert set(values) == {"fullnameOverride", "image", "head", "worker"}
    assert values["fullnameOverride"] == manifest["metadata"]["name"]
    assert head["rayVersion"] == spec["rayVersion"]
    assert head["rayStartParams"] == spec["headGroupSpec"]["rayStartParams"]
    for key in OF_GROUP:
        assert worker[key] == group[key], key

    ours = spec["headGroupSpec"]["template"]["spec"]
    assert _rendered(head, "ray-head", values["image"]) == ours
    ours = dict(group["template"]["spec"])
    # The chart has no key for it; docs/deploy-hyperpod.md says what follows.
    del ours["terminationGracePeriodSeconds"]
    assert _rendered(worker, "ray-worker", values["image"]) == ours


def test_the_job_of_the_rayjob_is_mounted_where_it_is_run() -> None:
    job = load("kuberay/rayjob.yaml", "RayJob")["spec"]
    config = load("kuberay/rayjob.yaml", "ConfigMap")
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    path = Path(job["entrypoint"].split()[-1])
    assert job["entrypoint"].split()[:2] == ["forebay", "run"]
    assert path.name in config["data"]
    volume = only(container["volumeMounts"], mountPath=str(path.parent))["name"]
    assert only(pod["volumes"], name=volume)["configMap"] == {"name": config["metadata"]["name"]}
    # Without CPUs the driver would run on the head, which has neither the job nor the data.
    cpus = int(group["rayStartParams"]["num-cpus"])
    assert 0 < job["entrypointNumCpus"] <= cpus == int(container["resources"]["limits"]["cpu"])
    budget = size(environment(container)["FOREBAY_MEMORY_LIMIT"])
    limit = size(container["resources"]["limits"]["memory"])
    assert limit > budget + cpus * UNCOUNTED_PER_THREAD


def test_the_job_of_the_rayjob_runs(binary: Path, tmp_path: Path) -> None:
    job = load("kuberay/rayjob.yaml", "ConfigMap")["data"]["job.yaml"]
    for theirs, ours in {
        "/fsx/datasets/photos": ROOT / "examples" / "data" / "photos",
        "/fsx/prepared/photos": tmp_path / "out",
    }.items():
        assert job.count(theirs) == 1
        job = job.replace(theirs, str(ours))
    path = tmp_path / "job.yaml"
    path.write_text(job)
    for _ in range(2):  # a retry after a commit succeeds as well
        status, out, err = forebay("run", "--json", path, cwd=tmp_path)
        assert status == 0, out + err
        assert json.loads(out)["rows_written"] == 12
    written = fb.read_parquet(str(tmp_path / "out"))
    assert written.count() == 12
    assert len(data_files(tmp_path / "out")) == 1


def _dockerfile() -> str:
    """The recipe, with continued lines joined."""
    return (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")


def _instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", _dockerfile(), flags=re.MULTILINE)


def test_what_the_images_are_built_from_is_there() -> None:
    rules = [r for r in (ROOT / ".dockerignore").read_text().splitlines() if r and r[0] != "#"]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    sources = set()
    for instruction in _instructions("COPY"):
        if not instruction.startswith("--from="):
            sources |= set(instruction.split()[:-1])
    assert sources == let_in, "what is copied and what .dockerignore lets in differ"
    kept_out = [rule for rule in rules[1:] if not rule.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, rule) for rule in kept_out), source


def test_the_stages_and_the_crate_of_the_images_exist() -> None:
    stages = {line.split(" AS ")[1] for line in _instructions("FROM")}
    assert {"sidecar", "ray"} <= stages
    for line in _instructions("COPY"):
        if stage := re.match(r"--from=(\S+)", line):
            assert stage[1] in stages
    for stage, _ in re.findall(r"from=(\w+),source=(\S+?),", _dockerfile()):
        assert stage in stages
    (package,) = set(re.findall(r"cargo build --release -p (\S+) --locked", _dockerfile()))
    manifest = (ROOT / "crates" / package / "Cargo.toml").read_text()
    assert f'name = "{package}"' in manifest
    assert '[[bin]]\nname = "forebay"' in manifest
    # The toolchain of the recipe is the one that the workspace asks for.
    (wanted,) = re.findall(r'^rust-version = "(.+)"', (ROOT / "Cargo.toml").read_text(), flags=re.M)
    assert f"RUST_IMAGE=rust:{wanted}-" in _dockerfile()
    assert set(re.findall(r"^ARG VERSION=(\S+)", _dockerfile(), flags=re.M)) == {fb.__version__}


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "forebay.json").read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = load("prometheus/rules.yaml", "PrometheusRule")["spec"]["groups"]
    return group["rules"]


def queries() -> dict[str, str]:
    """Every query of dashboard and alerts, with Grafana's variables filled in."""
    found = {f"alert {rule['alert']}": rule["expr"] for rule in rules()}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            (series,) = re.findall(r"^label_values\((.+), \w+\)$", variable["query"]["query"])
            found[f"variable {variable['name']}"] = series
    return {name: query.replace("$__rate_interval", "1m") for name, query in found.items()}


def _series(expression: Any) -> Iterator[Any]:
    """The selectors of series in a query."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for part in ("expr", "lhs", "rhs", "vector_selector"):
        inner = getattr(expression, part, None)
        if inner is not None:
            yield from _series(inner)
    for argument in getattr(expression, "args", None) or []:
        yield from _series(argument)


def test_the_queries_are_promql_over_our_metrics() -> None:
    for name, query in queries().items():
        series = list(_series(promql_parser.parse(query)))
        assert series, name
        for one in series:
            assert re.match(r"(forebay|process)_|up$", one.name), f"{name}: {one.name}"
            # Every program has these: without the job they would be everybody's.
            if not one.name.startswith("forebay_"):
                assert '{job="forebay"' in one.prettify(), f"{name}: {one.name}"


def test_the_metrics_of_the_queries_exist() -> None:
    if not METRICS_PAGE.exists():
        pytest.skip("docs/metrics.md is not there")
    page = METRICS_PAGE.read_text()
    for name, query in queries().items():
        for series in _series(promql_parser.parse(query)):
            # `up` is Prometheus's own: whether the last scrape succeeded.
            named = re.search(rf"\b{series.name}\b", page)
            assert series.name == "up" or named, f"{name}: {series.name}"


def test_the_job_that_the_queries_select_is_set_by_the_monitor() -> None:
    (endpoint,) = load("kuberay/podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    assert only(endpoint["relabelings"], targetLabel="job")["replacement"] == "forebay"
    targets = {relabeling["targetLabel"] for relabeling in endpoint["relabelings"]}
    # What KubeRay's monitors call it, and what the dashboard's variables filter by.
    assert {"ray_io_cluster", "ray_io_node_type"} <= targets


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    tested = load("prometheus/rules_test.yaml")["tests"]
    fires, names = set(), {rule["alert"] for rule in rules()}
    for test in tested:
        for check in test["alert_rule_test"]:
            assert check["alertname"] in names
            if check.get("exp_alerts"):
                fires.add(check["alertname"])
    assert fires == names
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert "$labels." in rule["annotations"]["description"], rule["alert"]


def test_the_dashboard_is_whole() -> None:
    board = dashboard()
    assert board["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", "of whoever imports it"
            variables = set(re.findall(r"\$(\w+)", target["expr"]))
            assert variables <= {"cluster", "pod", "loader", "__rate_interval"}
