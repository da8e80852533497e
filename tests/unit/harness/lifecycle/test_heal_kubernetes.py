"""Removal of what dead runs left on a Kubernetes cluster: of this machine, of others, and of none that live."""

from pathlib import Path
from typing import Any, cast

import pytest

from aftershock.errors import ClusterError, PlanError
from aftershock.faults.sections.cluster import Attach
from aftershock.harness.attach.attached import AttachmentDescriptor, read_descriptor
from aftershock.harness.cluster.kubernetes import cluster as module
from aftershock.harness.cluster.kubernetes.api import Api
from aftershock.harness.cluster.kubernetes.cluster import BEAT, Heartbeat
from aftershock.harness.cluster.kubernetes.manifests import Place
from aftershock.harness.lifecycle.heal import heal_kubernetes
from aftershock.harness.safety.ownership import HOME, KEEP, OWNER, RUN, owner

DEAD = f"999999999:1:{owner().split(':', 2)[2]}"  # no such process on this machine
ELSEWHERE = "12:345:0:othermachine:otherboot:4026531836"


class Store:
    """Objects of a Kubernetes cluster in memory; ``deaf`` are those that no deletion removes."""

    context = "kind-test"

    def __init__(self) -> None:
        self.items: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.deaf = frozenset[str]()
        self.beating = frozenset[str]()

    def run(self, run_id: str, owner_label: str, home: Path, *, own: bool = True) -> None:
        """Add the objects of a run, in a namespace of its own or in ``shared``."""
        place = Place(run_id, self.context, f"aftershock-{run_id}" if own else "shared", own_namespace=own)
        annotations = {OWNER: owner_label, HOME: str(home), KEEP: "false"}
        if own:
            self._add("Namespace", "", place.namespace, run_id, annotations)
        self._add("ConfigMap", place.namespace, place.root, run_id, annotations)
        self._add("Pod", place.namespace, f"{place.prefix}k1", run_id, {})

    def _add(self, kind: str, namespace: str, name: str, run_id: str, annotations: dict[str, str]) -> None:
        metadata = {"name": name, "labels": {RUN: run_id}, "annotations": dict(annotations)}
        metadata |= {"namespace": namespace, "creationTimestamp": "2026-11-30T00:00:00Z"}
        self.items[kind, namespace, name] = {"kind": kind, "metadata": metadata}

    def objects(self, kind: str, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        key, _, value = selector.partition("=")
        return [
            item
            for (of, _, _), item in self.items.items()
            if of == kind
            and namespace in (None, item["metadata"]["namespace"])
            and (item["metadata"]["labels"].get(key) == value if value else key in item["metadata"]["labels"])
        ]

    def find(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        item = self.items.get((kind, namespace or "", name))
        if item and kind == "ConfigMap" and item["metadata"]["labels"][RUN] in self.beating:
            annotations = item["metadata"]["annotations"]
            annotations[BEAT] = str(int(annotations.get(BEAT, "0")) + 1)
        return item and {**item, "metadata": {**item["metadata"], "annotations": dict(item["metadata"]["annotations"])}}

    def delete(self, kind: str, namespace: str | None, name: str, *, grace_s: int | None = None) -> bool:
        assert grace_s in (0, None)
        if name in self.deaf:
            return True
        if kind == "Namespace":
            for key in [key for key in self.items if key[1] == name]:
                del self.items[key]
            namespace = ""
        return self.items.pop((kind, namespace or "", name), None) is not None

    def cordon(self, machine: str, run_id: str) -> None:
        """Add a node that a run has cordoned."""
        self._add("Node", "", machine, run_id, {})
        self.items["Node", "", machine]["spec"] = {"unschedulable": True}

    def patch(self, kind: str, namespace: str | None, name: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge a change into labels and specification."""
        item = self.items[kind, namespace or "", name]
        for old, new in ((item["metadata"]["labels"], change["metadata"]["labels"]), (item["spec"], change["spec"])):
            for key, value in new.items():
                old[key] = value
                if value is None:
                    del old[key]
        return item

    def left(self) -> set[str]:
        return {item["metadata"]["labels"][RUN] for item in self.items.values()}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(module, "BEAT_S", 0.0)
    return Store()


def heal(store: Store, run_id: str | None = None, **options: Any) -> tuple[list[str], list[str], list[str]]:
    said = list[str]()
    actions, problems = heal_kubernetes(cast("Api", store), run_id, said.append, **options)
    return actions, problems, said


@pytest.mark.parametrize("own", [True, False])
def test_a_dead_run_is_removed_and_a_living_one_is_not(store: Store, tmp_path: Path, own: bool) -> None:
    store.run("r-dead", DEAD, tmp_path / "gone", own=own)
    store.run("r-live", owner(), tmp_path / "live")
    (action,), problems, _ = heal(store)
    assert "r-dead: removed pod/" in action
    assert [] == problems
    assert {"r-live"} == store.left()


def test_objects_of_others_in_a_shared_namespace_stay(store: Store, tmp_path: Path) -> None:
    store.run("r-dead", DEAD, tmp_path, own=False)
    store.run("r-live", owner(), tmp_path, own=False)
    heal(store, namespace="shared")
    assert {"r-live"} == store.left()


def test_a_run_of_another_machine_is_left_alone_without_listening(store: Store, tmp_path: Path) -> None:
    store.run("r-far", ELSEWHERE, tmp_path / "far")
    actions, _, said = heal(store)
    assert [] == actions
    assert ["the run r-far of another machine may be alive, and is left alone"] == said
    assert {"r-far"} == store.left()


def test_a_silent_run_of_another_machine_is_removed(store: Store, tmp_path: Path) -> None:
    """Its machine vanished with all processes and files; one that gives signs of life stays."""
    store.run("r-far", ELSEWHERE, tmp_path / "far")
    store.run("r-near", ELSEWHERE, tmp_path / "near")
    store.beating = frozenset({"r-near"})
    actions, _, said = heal(store, listen=True)
    assert ["r-far"] == [action.partition(":")[0] for action in actions]
    assert "the run r-near of another machine gives signs of life, and is left alone" in said
    assert {"r-near"} == store.left()


def test_a_named_run_that_lives_is_an_error(store: Store, tmp_path: Path) -> None:
    store.run("r-live", owner(), tmp_path)
    with pytest.raises(ClusterError, match="belongs to the running process"):
        heal(store, "r-live")
    with pytest.raises(ClusterError, match="kind-test has nothing of a run r-none"):
        heal(store, "r-none")
    assert {"r-live"} == store.left()


def test_what_can_not_be_removed_is_a_problem(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other runs are removed all the same."""
    monkeypatch.setattr(module, "_GONE_S", 0.0)
    store.run("r-1", DEAD, tmp_path)
    store.run("r-2", DEAD, tmp_path)
    store.deaf = frozenset({"aftershock-r-1"})
    actions, problems, _ = heal(store)
    assert ["r-2"] == [action.partition(":")[0] for action in actions]
    assert "r-1: aftershock-r-1 of the run r-1 is still there" in problems[0]


def test_a_run_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its end, also if the API server refuses some of them."""
    beats: list[str] = []

    class Server:
        def patch(self, _kind: str, _namespace: str, _name: str, change: Any) -> None:
            beats.append(change["metadata"]["annotations"][BEAT])
            if len(beats) == 2:
                raise ClusterError("refused")

    monkeypatch.setattr(module, "BEAT_S", 0.001)
    heartbeat = Heartbeat(cast("Api", Server()), Place("r-1", "c", "n", own_namespace=True))
    while len(beats) < 4:
        pass
    heartbeat.end()
    count = len(beats)
    assert ["1", "2", "3", "4"] == beats[:4]
    assert count == len(beats)


def test_nodes_that_a_dead_run_has_cordoned_take_pods_again(store: Store, tmp_path: Path) -> None:
    """Not those of a living one, and those of a run without other objects only if the user names it."""
    store.run("r-dead", DEAD, tmp_path / "gone", own=False)
    store.run("r-live", owner(), tmp_path / "live")
    for machine, run_id in (("m1", "r-dead"), ("m2", "r-live"), ("m3", "r-api")):
        store.cordon(machine, run_id)
    actions, _, said = heal(store)
    assert "r-dead: uncordoned m1" in actions
    assert "m3 cordoned by the run r-api; if it is dead: aftershock heal --kubernetes --run r-api" in said
    assert {"m2", "m3"} == {name for (kind, _, name), item in store.items.items() if kind == "Node" and item["spec"]}
    assert ["r-api: uncordoned m3"] == heal(store, "r-api")[0]


def _kept_by(store: Store, run_id: str, owner_label: str, folder: Path) -> None:
    """Add a run on attached pods whose files are gone, with what it kept beside them."""
    store.run(run_id, owner_label, folder / "gone", own=False)
    place = Place(run_id, store.context, "shared", own_namespace=False)
    pods = {"namespace": "shared", "brokers": {1: "k1"}, "context": "of-the-other-machine"}
    attach = Attach.model_validate({"bootstrap": "127.0.0.1:1", "kubernetes": pods})
    AttachmentDescriptor(run_id, attach, (), ()).write(folder)
    texts = {"attached.json": (folder / "attached.json").read_text(), "run.json": f'{{"owner": "{owner_label}"}}'}
    store.items["ConfigMap", "shared", place.root]["data"] = texts


def test_what_a_run_kept_beside_the_brokers_needs_permission(store: Store, tmp_path: Path) -> None:
    """Who may write config maps there could name an address to which this machine would send its secrets."""
    _kept_by(store, "kept", DEAD, tmp_path)
    before = {*store.items}
    (problem,) = heal_kubernetes(cast("Api", store), None, print).problems
    assert "the run kept the undo of its faults on 127.0.0.1:1" in problem
    asked: list[str] = []

    def refuse(attach: Attach, where: str) -> None:
        asked.append(f"{attach.bootstrap} {where}")
        raise PlanError(["not permitted"])

    with pytest.raises(PlanError, match="not permitted"):
        heal_kubernetes(cast("Api", store), "kept", print, permit=refuse)
    place = Place("kept", store.context, "shared", own_namespace=False)
    assert [f"127.0.0.1:1 the config map {place.root} in the namespace shared"] == asked
    assert before == {*store.items}  # which know the faults


def test_what_a_run_kept_is_healed_by_the_context_of_this_machine(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kept_by(store, "kept", DEAD, tmp_path)
    healed: list[str | None] = []

    def heal(home: Path, _log: object, *, explicit: bool) -> list[str]:
        pods = read_descriptor(home).attach.kubernetes
        healed.append(pods and pods.context)
        return [f"{home.name}: healed {explicit}"]

    monkeypatch.setattr("aftershock.harness.lifecycle.heal._heal_attached", heal)
    actions = heal_kubernetes(cast("Api", store), "kept", print, permit=lambda *_: None).actions
    assert ["kind-test"] == healed
    assert actions[0] == "kept: healed True"
    assert not store.items
