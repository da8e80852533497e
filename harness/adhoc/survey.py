"""Survey of a running cluster: what faults can do to it, why the rest is not possible, and the lines for a plan.

A broker's container is found by its published port: the port of the address that the broker advertises, on this host.
A container that publishes the ports of several brokers, or runs Toxiproxy, is a proxy. With a compose file, the
containers are those of its project.

Pods are looked for on request only, by the ids of their brokers (``pod_selectors``).

`proxy_lines` are what a user adds to a compose file, so that a Toxiproxy stands before the brokers: it publishes their
ports in their place, and dials them on their network. What the brokers advertise stays as it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import docker
from docker.models.containers import Container

from aftershock.errors import AftershockError, ClusterError, EngineError
from aftershock.faults.kinds.fault import Fault
from aftershock.faults.kinds.registry import KINDS
from aftershock.faults.plan.check import BY_AGENTS, IN_CONTAINERS, IN_NETWORKS, IN_PODS, refusal
from aftershock.faults.sections.cluster import Attach, AttachKubernetes
from aftershock.harness.attach import container_packets, inserted_proxy
from aftershock.harness.attach.attached import ClusterDescription, describe_cluster
from aftershock.harness.attach.broker_containers import PROJECT, SERVICE, by_broker, is_here, select
from aftershock.harness.attach.pod_selectors import PodSelector, selectors
from aftershock.harness.cluster import engine
from aftershock.harness.cluster.images.build import has_image, toxiproxy
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.node import host_ports
from aftershock.workloads.kafka.wire.connection import Address
from aftershock.workloads.load.security import SecuritySettings

_API_PORT = 8474


@dataclass(frozen=True)
class Survey:
    """A cluster at ``bootstrap``, and the containers of its brokers; ``unseen`` is why containers are unknown.

    ``compose`` is the compose file that selects the containers. ``shared`` has the reason why a container's packets
    can't be changed, and ``inside`` the port of each container that it publishes where the broker advertises, by
    broker. ``no_proxy`` is why no Toxiproxy can be inserted, "" if one can. ``proxy_image`` is an image of Toxiproxy.
    ``pods`` are the selections of pods that may be the brokers'.
    """

    bootstrap: str
    cluster: ClusterDescription
    containers: Mapping[int, Container]
    unseen: str = ""
    compose: str | None = None
    shared: Mapping[int, str] = field(default_factory=dict)
    inside: Mapping[int, int] = field(default_factory=dict)
    no_proxy: str = ""
    proxy_image: str = ""
    pods: Sequence[PodSelector] = ()

    def lines(self) -> Iterator[str]:
        """Yield the survey as text."""
        yield f"cluster {self.cluster.cluster_id}: {len(self.cluster.brokers)} brokers, asked at {self.bootstrap}"
        for broker in self.cluster.brokers:
            found = self.containers.get(broker.id)
            where = f"container {found.name}" if found else "no container found"
            if self.pods:
                where = f"pod {self.pods[0].namespace}/{self.pods[0].names[int(broker.id)]}"
            yield f"  broker {broker.id}  {broker.address}  rack {broker.rack or 'unknown'}  {where}"
        if self.unseen:
            yield f"containers were not looked for: {self.unseen}"
        for other in self.pods[1:]:
            yield (
                f"pods that fit as well, because their brokers have the same ids: {', '.join(other.names.values())} in "
                f"the namespace {other.namespace} ({other.selector}); which are this cluster's is yours to know"
            )
        verdicts: dict[tuple[bool, str], list[str]] = {}
        for name, kind in KINDS.items():
            on_pods = self.pods and name in (*IN_PODS, *BY_AGENTS, *IN_CONTAINERS, *IN_NETWORKS)
            verdict = self._verdict_on_pods if on_pods else self._verdict
            verdicts.setdefault(verdict(name, kind), []).append(name)
        for possible, title in ((True, "possible"), (False, "not possible")):
            yield f"{title}:"
            for (is_possible, why), names in verdicts.items():
                if is_possible == possible:
                    yield f"  {', '.join(names)}: {why}"
        yield "for your plan:"
        yield from self._section([] if self.no_proxy else ["proxy: insert"])
        yield self._command()

    def proxy_lines(self) -> Iterator[str]:
        """Yield what puts a Toxiproxy before the brokers; raise ClusterError if a broker can't be reached that way."""
        ways = {broker.id: self._way(broker.id, broker.address) for broker in self.cluster.brokers}
        definitions = [
            {"name": inserted_proxy.proxy_name(broker), "listen": f"0.0.0.0:{port}", "upstream": upstream}
            for broker, (port, upstream) in ways.items()
        ]
        yield "write toxiproxy.json beside your compose file:"
        yield from ("  " + line for line in json.dumps(definitions, indent=1).splitlines())
        yield "in your compose file, let Toxiproxy publish the ports in the place of the brokers:"
        yield "  services:"
        ports = [f"127.0.0.1:{_API_PORT}:{_API_PORT}"]
        networks = dict[str, None]()
        for broker, (port, upstream) in ways.items():
            container, inside = self.containers[broker], self.inside[broker]
            (binding, *_) = container.attrs["NetworkSettings"]["Ports"][f"{inside}/tcp"]
            ports.append(f"{binding['HostIp'] or '0.0.0.0'}:{port}:{port}")  # noqa: S104 -- as the broker did
            project = container.labels.get(PROJECT, "")
            networks |= dict.fromkeys(
                network.removeprefix(f"{project}_") for network in container.attrs["NetworkSettings"]["Networks"]
            )
            yield f"    {upstream.rpartition(':')[0]}:"
            yield f"      # remove the port {port} from `ports`; what the broker advertises stays, {port} too"
        yield "    toxiproxy:"
        yield f"      image: {self.proxy_image}"
        yield '      command: ["-host=0.0.0.0", "-config=/toxiproxy.json"]'
        yield '      volumes: ["./toxiproxy.json:/toxiproxy.json:ro"]'
        yield f"      ports: {json.dumps(ports)}"
        if [*networks] != ["default"]:
            yield f"      networks: {json.dumps([*networks])}"
        yield "for your plan, after `docker compose up -d`:"
        names = ", ".join(f"{inserted_proxy.proxy_name(broker)}: {broker}" for broker in ways)
        yield from self._section([f"toxiproxy: localhost:{_API_PORT}", f"proxies: {{{names}}}"])
        yield self._command(f"localhost:{_API_PORT}")

    def _way(self, broker: int, address: Address) -> tuple[int, str]:
        """Return the port that a proxy before a broker publishes, and the address that it dials."""
        if broker not in self.containers:
            raise ClusterError(
                f"no proxy can stand before broker {broker}: no container on this Docker engine publishes {address}, "
                "which it advertises; let it advertise a port of this host that its container publishes"
            )
        container = self.containers[broker]
        if broker not in self.inside:
            raise ClusterError(
                f"no proxy can stand before broker {broker}: its container {container.name} does not publish the port "
                f"of {address}, which it advertises; if a proxy already stands there, name it under `toxiproxy`"
            )
        return address.port, f"{container.labels.get(SERVICE) or container.name}:{self.inside[broker]}"

    def _section(self, further: list[str]) -> Iterator[str]:
        yield "  cluster:"
        yield "    attach:"
        yield f"      bootstrap: {self.bootstrap}"
        if self.compose:
            yield f"      compose: {self.compose}"
        elif self.pods:
            yield f"      kubernetes: {self.pods[0].section()}"
        elif self.containers:
            names = ", ".join(f"{broker}: {container.name}" for broker, container in self.containers.items())
            yield f"      containers: {{{names}}}"
        yield from (f"      {line}" for line in further)

    def _command(self, *addresses: str) -> str:
        options = [f"--allow-attach {address}" for address in (*self.bootstrap.split(","), *addresses)]
        options += [f"--allow-namespace {self.pods[0].namespace}"] if self.pods else []
        options += [f"--allow-container {container.name}" for container in self.containers.values()]
        return f"run it with: aftershock run PLAN {' '.join(options)}"

    def _verdict(self, name: str, kind: type[Fault]) -> tuple[bool, str]:
        proxy = None if self.no_proxy else "insert"
        names = {broker: str(container.name) for broker, container in self.containers.items()}
        attach = Attach(bootstrap=self.bootstrap, containers=names, proxy=proxy)
        reachable = [broker for broker in self.containers if broker not in self.shared]
        if name in IN_NETWORKS and names:
            if not reachable:
                return False, "; ".join(self.shared.values())
            text = f"on the packets of the containers of the brokers {_some(reachable)}"
            if between := [broker for broker in reachable if broker not in self.inside]:
                text += f", of {_some(between)} not on those of clients, whose port these containers do not publish"
            return True, "; ".join([text, *self.shared.values()])
        if name in (*IN_CONTAINERS, *IN_NETWORKS) and not names:
            return False, "no broker's container is on this Docker engine; name them under `containers` if they are"
        if name in IN_CONTAINERS:
            return True, f"on the containers of the brokers {_some(names)}"
        if kind.family == "link" and not kind.needs:
            if not self.no_proxy:
                return True, "on the links of clients, with `proxy: insert`"
            advice = "`aftershock attach --insert-proxy` prints how a Toxiproxy of yours comes before the brokers"
            return False, f"{self.no_proxy}; {advice}"
        if reason := refusal(kind, attach):
            return False, reason
        own = "on the topics of the plan; on settings of brokers that `brokers` names"
        return True, "Aftershock starts the clients" if kind.family == "client" else own

    def _verdict_on_pods(self, name: str, kind: type[Fault]) -> tuple[bool, str]:
        pods = AttachKubernetes(namespace=self.pods[0].namespace, pods=self.pods[0].selector, agent=True, nodes=True)
        if reason := refusal(kind, Attach(bootstrap=self.bootstrap, kubernetes=pods)):
            return False, reason
        needs = "with `nodes: true`" if name == "drain" else "with `agent: true`" if name in BY_AGENTS else ""
        return True, f"on the pods of the brokers {_some(self.pods[0].names)}{f', {needs}' if needs else ''}"


def _some(brokers: Mapping[int, object] | list[int]) -> str:
    return ", ".join(map(str, brokers))


def survey(
    bootstrap: str | None, compose: str | None = None, api: Api | None = None, namespace: str | None = None
) -> Survey:
    """Describe a cluster over plain text, and find its containers, or with ``api`` its pods, in one namespace or all.

    Without ``bootstrap``, the cluster is asked at the ports that the containers of the compose file publish. Raises
    ClusterError if no broker answers, or the compose file or the namespace can't be used, or has no such pods;
    EngineError without an engine that it needs.
    """
    security, unseen = SecuritySettings().resolved(), ""
    if api is not None:
        if bootstrap is None:
            raise ClusterError("no cluster to survey: give the address of a broker, HOST:PORT, with --kubernetes")
        return _survey_of_pods(bootstrap, api, namespace)
    try:
        client = engine.connect()
        running = client.containers.list(ignore_removed=True)
    except EngineError as error:
        if compose:
            raise
        client, running, unseen = None, [], str(error)
    if compose:
        running = select(client, Attach(bootstrap="localhost:1", compose=compose))
        if bootstrap is None:
            ports = {port for container in running for port in host_ports(container).values()}
            if not ports:
                raise ClusterError(f"no container of {compose} publishes a port; give the address of a broker as well")
            found = describe_cluster(",".join(f"localhost:{port}" for port in sorted(ports)), security)
            bootstrap = ",".join(str(broker.address) for broker in found.brokers)
    if bootstrap is None:
        raise ClusterError("no cluster to survey: give the address of a broker, HOST:PORT, or --compose FILE")
    cluster = describe_cluster(bootstrap, security)
    advertised = {int(broker.id): broker.address for broker in cluster.brokers}
    local = {address.port for address in advertised.values() if is_here(address)}
    candidates = [container for container in running if compose or local.intersection(host_ports(container).values())]
    try:
        names = by_broker(candidates, advertised)
    except ClusterError as error:
        names, unseen = {}, str(error)
    by_name = {str(container.name): container for container in candidates}
    containers = {broker: by_name[name] for broker, name in names.items() if broker in advertised}
    reasons = {broker: container_packets.refusal(container, running) for broker, container in containers.items()}
    inside = {
        broker: port
        for broker, container in containers.items()
        for port, outside in host_ports(container).items()
        if outside == advertised[broker].port
    }
    no_proxy = ""
    try:
        inserted_proxy.routes(bootstrap, advertised, security)
    except AftershockError as error:
        no_proxy = str(error)
    return Survey(
        bootstrap,
        cluster,
        containers,
        unseen,
        compose,
        {broker: reason for broker, reason in reasons.items() if reason},
        inside,
        no_proxy,
        _proxy_image(client),
    )


def _survey_of_pods(bootstrap: str, api: Api, namespace: str | None) -> Survey:
    cluster = describe_cluster(bootstrap, SecuritySettings().resolved())
    ids = [int(broker.id) for broker in cluster.brokers]
    if not (pods := selectors(api, ids, namespace)):
        where = f"the namespace {namespace}" if namespace else f"the Kubernetes cluster {api.context}"
        raise ClusterError(
            f"no pods of {where} are the brokers {_some(ids)}, each once, by KAFKA_NODE_ID in their containers' "
            "environment or the number at the end of their names: name them in the plan, `attach.kubernetes.brokers`"
        )
    no_proxy = "brokers in pods get no Toxiproxy of ours"
    return Survey(bootstrap, cluster, {}, no_proxy=no_proxy, pods=pods)


def _proxy_image(client: docker.DockerClient | None) -> str:
    """Return the name of an image of Toxiproxy, that on the engine if there is one."""
    official, own = f"{engine.OFFICIAL_TOXIPROXY}:{engine.TOXIPROXY}", toxiproxy().name
    return own if client and not has_image(client, official) and has_image(client, own) else official
