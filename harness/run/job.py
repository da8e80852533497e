"""Plan that is ready to run: compiled, and permitted by the user to start programs, to connect, and to read secrets.

A plan may come from a stranger. It starts a program only with ``--allow-exec``, connects to an address only with
``--allow-attach HOST:PORT``, stops, limits or cuts off a container of the user's only with ``--allow-container NAME``,
and reads an environment variable or the file of a private key only with ``--secret NAME``. The last three can also be
given in a project file::

    # aftershock.toml
    allow_attach = ["kafka-1.example:9093", "toxiproxy.example:8474"]
    allow_containers = ["kafka-1"]
    secrets = ["KAFKA_PASSWORD"]

The project file is searched from the working directory upwards, to the root of the Git repository or the home folder;
outside of both, only in the working directory. Variables whose name starts with ``AFTERSHOCK_SECRET_`` need no
permission. Loopback addresses need one, because local services trust local connections.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aftershock.errors import AftershockError, ImageError, Log, PlanError
from aftershock.faults.plan.check import CheckedPlan, apply_changes, attachment_problems, check_version, load_plan
from aftershock.faults.sections.cluster import Attach, BlockDevice
from aftershock.faults.sections.document import Location, did_you_mean, format_problems, load
from aftershock.faults.timeline.compile import compile_checked
from aftershock.faults.timeline.timeline import Timeline
from aftershock.harness.attach import broker_pods
from aftershock.harness.attach.attached import describe_cluster, secured_by
from aftershock.harness.attach.broker_containers import find
from aftershock.harness.clients.arms import programs_of
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.topology import SWITCHES, ClusterSpec
from aftershock.workloads.load.security import SecuritySettings

FILE = "aftershock.toml"
SECRET_PREFIX = "AFTERSHOCK_SECRET_"  # noqa: S105 -- the start of a variable's name
_KEYS = {
    "allow_attach": re.compile(r"[^\s,/@]+:\d{1,5}"),
    "allow_containers": re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*"),
    "allow_namespaces": re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"),
    "secrets": re.compile(r"[^\s${}]+"),
}
_EXAMPLES = {
    "allow_attach": '["kafka.example:9092"]',
    "allow_containers": '["kafka-1"]',
    "allow_namespaces": '["kafka-test"]',
    "secrets": '["KAFKA_PASSWORD"]',
}


@dataclass(frozen=True)
class Permissions:
    """Addresses that a plan may connect to, variables and private keys that it may read, and containers to stop.

    ``namespaces`` are those of a Kubernetes cluster in which a plan may create, and stop, pods.
    """

    addresses: Collection[str] = ()
    secrets: Collection[str] = ()
    containers: Collection[str] = ()
    namespaces: Collection[str] = ()


@dataclass(frozen=True)
class ProjectFile:
    """Content of ``aftershock.toml``; ``path`` is None if there is no such file."""

    path: Path | None = None
    permissions: Permissions = field(default_factory=Permissions)


@dataclass(frozen=True)
class Job:
    """A compiled plan to run; a plan given as YAML text has no ``file``.

    ``namespaces`` are those of a Kubernetes cluster that the user allows.
    """

    file: Path | None
    checked: CheckedPlan
    timeline: Timeline
    kafka: str | None
    rehearse: bool
    namespaces: Collection[str] = ()

    @property
    def attach(self) -> Attach | None:
        """Address of the existing cluster that the plan uses; None if the plan launches a cluster."""
        return self.checked.plan.cluster.attach

    @property
    def has_java_clients(self) -> bool:
        arms = [arm for workload in self.checked.plan.workloads for arm in workload.arms.values()]
        return any(arm.client == "java" and arm.version is None for arm in arms)

    @property
    def has_worker_pods(self) -> bool:
        """True if clients run in pods of Aftershock's own image."""
        places = [load.run_on.kubernetes for load in self.checked.plan.workloads if load.run_on]
        return any(pods is not None and pods.image is None for pods in places)

    def programs(self, log: Log) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return the command of each client with a version; programs that are missing are built.

        Raises ProgramError, with positions in the plan, if a version can't be built, or lacks what the plan needs.
        """
        return {key: program.command for key, program in programs_of(self.checked, log).items()}

    def service_images(self, log: Log) -> dict[str, str]:
        """Return the image on the engine for each image of a service that the plan names; shipped images are built.

        Raises ImageError, with the position in the plan, if an image is not available.
        """
        found: dict[str, str] = {}
        for index, workload in enumerate(self.checked.plan.workloads):
            for name, arm in workload.arms.items():
                if arm.image and arm.image not in found:
                    try:
                        found[arm.image] = engine.service_image(engine.connect(), arm.image, log).name
                    except ImageError as error:
                        where = self.checked.source_map.position(("workloads", index, "arms", name, "image"))
                        raise ImageError(f"{where}: {error}") from error
        return found

    @property
    def spec(self) -> ClusterSpec:
        """Specification of the cluster to launch. Raises PlanError if the plan uses an existing cluster."""
        if self.attach:
            allowed = "`aftershock run` without --keep and without --kafka"
            raise PlanError(
                [f"a plan with `cluster: attach`, which uses an existing cluster, runs only with {allowed}"]
            )
        cluster = self.checked.plan.cluster
        needs = {need for step in self.timeline.steps for need in step.fault().cluster_needs()}
        block_device = cluster.block_device
        if needs & {"block_device", "disk_layer"}:
            block_device = block_device or BlockDevice()
            block_device = block_device.model_copy(update={"layer": block_device.layer or "disk_layer" in needs})
        switches = {name: bool(getattr(cluster, name)) or name in needs for name in SWITCHES}
        return ClusterSpec.of(cluster.model_copy(update={"block_device": block_device, **switches}), self.kafka)


KUBERNETES = "kubernetes"
"""Word for ``--on`` that stands for a Kubernetes cluster."""


def on_kubernetes(plan: Path, changes: Sequence[str]) -> list[str]:
    """Return the changes of a plan by which its cluster is launched on Kubernetes; a plan that says how stays as it is.

    Raises PlanError for a plan that attaches to a cluster.
    """
    document = load(plan)  # the plan as it is may be valid on Kubernetes only
    apply_changes(document, changes)
    cluster = document.data.get("cluster")
    keys = cluster if isinstance(cluster, Mapping) else {}
    if "attach" in keys:
        raise PlanError([f"{plan.name}: --on kubernetes launches a cluster, but the plan attaches to one: omit it"])
    return [*changes] if "kubernetes" in keys else [*changes, "cluster.kubernetes={}"]


def prepare(
    plan: Path | str,
    changes: Sequence[str],
    seed: int,
    log: Log,
    *,
    kafka: str | None = None,
    rehearse: bool = False,
    allow_exec: bool = False,
    permissions: Permissions = Permissions(),
) -> Job:
    """Compile a plan from a file (Path) or YAML text (str); raise PlanError if the plan can't or may not be run."""
    checked = load_plan(plan, changes)
    if kafka:
        check_version(checked, kafka)
    if not allow_exec:
        refuse_programs(checked)
    if attach := checked.plan.cluster.attach:
        located = permitted_attachment(attach, checked.source_map.position, permissions)
        if located != attach:
            checked = _with_containers(checked, located)
            names = ", ".join(f"{broker}: {name}" for broker, name in (located.containers or located.pods).items())
            log(f"{'pods' if located.pods else 'containers'} of brokers: {names}")
    namespaces = permitted_namespaces(checked, permissions) if checked.plan.cluster.kubernetes else ()
    for warning in checked.warnings:
        log(f"warning: {warning}")
    timeline = compile_checked(checked, seed)
    if rehearse:
        log("rehearsal: full load, no fault is injected")
    file = plan.resolve() if isinstance(plan, Path) else None
    return Job(file, checked, timeline, kafka, rehearse, namespaces)


def read_project_file(folder: Path) -> ProjectFile:
    """Read the ``aftershock.toml`` of a working directory; raise AftershockError, with the line, for an invalid one."""
    folder = folder.resolve()
    chain = (folder, *folder.parents)
    top = next((parent for parent in chain if (parent / ".git").exists() or parent == Path.home()), folder)
    path = next((parent / FILE for parent in chain[: chain.index(top) + 1] if (parent / FILE).is_file()), None)
    if path is None:
        return ProjectFile()
    try:
        text = path.read_bytes().decode()
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{path}:{place[1]}:{place[2]}" if place else f"{path}:{text.count(chr(10)) or 1}"  # at the end
        raise AftershockError(f"{where}: not valid TOML ({str(error).split(' (at ')[0]}); correct the file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise AftershockError(f"{path}: the project file can't be read ({error}); correct or remove it") from error
    if problems := list(_problems(path, text, content)):
        raise AftershockError("\n".join(problems))
    lists = (content.get(key, ()) for key in ("allow_attach", "secrets", "allow_containers", "allow_namespaces"))
    return ProjectFile(path, Permissions(*lists))


def _problems(path: Path, text: str, content: Mapping[str, Any]) -> Iterator[str]:
    for key, value in content.items():
        spelling = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}\b""")
        line = next((number for number, row in enumerate(text.splitlines(), 1) if spelling.match(row)), 1)
        where = f"{path}:{line}"
        if key not in _KEYS:
            yield f"{where}: unknown key `{key}`; {did_you_mean(key, _KEYS)}"
        elif not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            yield f"{where}: `{key}` must be a list of texts: write {key} = {_EXAMPLES[key]}"
        elif wrong := [word for word in value if not _KEYS[key].fullmatch(word)]:
            yield f"{where}: `{wrong[0]}` can't stand in `{key}`: write {key} = {_EXAMPLES[key]}"


def permitted_namespaces(checked: CheckedPlan, given: Permissions) -> Collection[str]:
    """Return the namespaces that the user allows; raise PlanError if the one that the plan names is not among them."""
    project = read_project_file(Path.cwd())
    allowed = {*given.namespaces, *project.permissions.namespaces}
    kubernetes = checked.plan.cluster.kubernetes
    if kubernetes and kubernetes.namespace not in {"auto", *allowed}:
        where = checked.source_map.position(("cluster", "kubernetes", "namespace"))
        problem = (
            f"{where}: the plan would create and stop pods in the namespace {kubernetes.namespace}; add "
            f"--allow-namespace {kubernetes.namespace} if you trust the plan, or list it in {FILE} "
            "(docs/SECURITY.md), or write `namespace: auto`"
        )
        raise PlanError([problem])
    return allowed


def refuse_programs(checked: CheckedPlan) -> None:
    """Raise PlanError if the plan starts programs: ``exec`` clients, services, or images of its own."""
    problems = [
        f"{checked.source_map.position(('workloads', index, 'arms', name))}: the arm `{name}` of workload "
        f"`{workload.name}` would start a program ({' '.join([*filter(None, [arm.image]), *arm.command])}); add "
        "--allow-exec (in Python: allow_exec=True) if you trust it"
        for index, workload in enumerate(checked.plan.workloads)
        for name, arm in workload.arms.items()
        if arm.client in ("exec", "service")
    ]
    images: list[tuple[Location, str | None]] = [(("cluster", "image"), checked.plan.cluster.image)]
    images += [
        (("workloads", index, "run_on", "kubernetes", "image"), workload.run_on.kubernetes.image)
        for index, workload in enumerate(checked.plan.workloads)
        if workload.run_on and workload.run_on.kubernetes
    ]
    problems += [refused_image(checked.source_map.position(place), image) for place, image in images if image]
    if problems:
        raise PlanError(problems)


def refused_image(where: str, image: str) -> str:
    """Return the problem of a plan or cluster spec that names an image of its own."""
    return (
        f"{where}: the plan would start containers of the image {image}; add --allow-exec (in Python: "
        "allow_exec=True) if you trust it"
    )


def permitted_attachment(attach: Attach, position: Callable[[Location], str], given: Permissions) -> Attach:
    """Return ``attach`` with the containers that its compose file or labels select, if the user permits all of it.

    ``position`` returns where a value of the plan is written. ``given``: permissions of the command line, to which
    those of the project file are added. Raises PlanError, with the options that are missing, unless the user permits
    every address, container and secret; ClusterError if the containers can't be found; EngineError without an engine.
    """
    project = read_project_file(Path.cwd())
    addresses = permitted_addresses(given, project)
    names = {*given.secrets, *project.permissions.secrets}
    problems, options = [], list[str]()
    for key in ("bootstrap", "admin", "toxiproxy"):
        for address in (getattr(attach, key) or "").split(","):
            if address and normalise(address) not in addresses:
                where = position(("cluster", "attach", key))
                options.append(f"--allow-attach {normalise(address)}")
                problems.append(
                    f"{where}: the plan would connect to {address}; add {options[-1]} if you trust the plan"
                )
    secrets = {
        "password": "read the environment variable {} and send it to the cluster",
        "key_password": "read the environment variable {}",
        "key": "log in to the cluster with the private key in {}",
    }
    for key, does in secrets.items():
        value = getattr(attach.security, key) or ""
        name = value.removeprefix("${").removesuffix("}")
        named_for_us = value != name and name.startswith(SECRET_PREFIX)
        if name and name not in names and not named_for_us:
            where = position(("cluster", "attach", "security", key))
            options.append(f"--secret {name}")
            problems.append(f"{where}: the plan would {does.format(name)}; add {options[-1]} if you trust the plan")
    if (pods := attach.kubernetes) and pods.namespace not in {*given.namespaces, *project.permissions.namespaces}:
        where = position(("cluster", "attach", "kubernetes", "namespace"))
        options.append(f"--allow-namespace {pods.namespace}")
        problems.append(
            f"{where}: the plan would stop and delete pods in the namespace {pods.namespace}; add {options[-1]} if "
            "you trust the plan"
        )
    # without all permissions, no broker is asked, and containers are only known by their own settings
    located = _located(attach, ask=not problems)
    selector = next((key for key in ("compose", "labels") if getattr(attach, key)), "")
    for broker, container in located.containers.items():
        if container not in {*given.containers, *project.permissions.containers}:
            where = position(
                ("cluster", "attach", selector) if selector else ("cluster", "attach", "containers", broker)
            )
            does = f"the plan would stop, limit and cut off the container {container}"
            options.append(f"--allow-container {container}")
            problems.append(f"{where}: {does}; add {options[-1]} if you trust the plan")
    if problems:
        also = f"the project file {project.path} doesn't allow this" if project.path else f"or list it in {FILE}"
        if len(options) > 1:
            problems.append(f"all of them: {' '.join(dict.fromkeys(options))}")
        raise PlanError([*problems, f"{also} (docs/SECURITY.md)"])
    return located


def _located(attach: Attach, *, ask: bool) -> Attach:
    """Return ``attach`` with the brokers' containers in the place of the compose file or labels that select them.

    Unless ``ask``, the brokers are not asked for their addresses; then containers that are only known by their
    published ports are left out. Pods are not looked for either then.
    """
    if attach.kubernetes and attach.kubernetes.pods and ask:
        api = Api(attach.kubernetes.context)
        named = broker_pods.find(api, attach.kubernetes)
        api.close()
        pods = attach.kubernetes.model_copy(update={"pods": None, "brokers": named})
        return attach.model_copy(update={"kubernetes": pods})
    if not (attach.compose or attach.labels):
        return attach
    addresses = {}
    if ask:
        secured = secured_by(SecuritySettings.model_validate(attach.security.model_dump()))
        brokers = describe_cluster(attach.admin or attach.bootstrap, secured).brokers
        addresses = {int(broker.id): broker.address for broker in brokers}
    found = find(engine.connect(), attach, addresses)
    return attach.model_copy(update={"containers": found, "compose": None, "labels": {}})


def _with_containers(checked: CheckedPlan, attach: Attach) -> CheckedPlan:
    """Return a plan with the containers of its brokers; raise PlanError if a fault names a broker without one."""
    cluster = checked.plan.cluster.model_copy(update={"attach": attach})
    draft = replace(checked.draft, attach=attach)
    if problems := list(attachment_problems(draft)):
        raise PlanError(format_problems(problems, checked.source_map))
    return replace(checked, plan=checked.plan.model_copy(update={"cluster": cluster}), draft=draft)


def permitted_addresses(given: Permissions, project: ProjectFile) -> set[str]:
    """Return the normalised addresses that the command line and the project file permit."""
    return {normalise(address) for address in (*given.addresses, *project.permissions.addresses)}


def normalise(address: str) -> str:
    """Return an address as ``host:port`` in lower case, for comparison."""
    host, _, port = address.removeprefix("http://").rstrip("/").lower().rpartition(":")
    return f"{host}:{int(port)}" if port.isdecimal() else address
