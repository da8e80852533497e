"""The objects of a CronJob, and the config map with the result of its latest run."""

from typing import Any, cast

import pytest

from aftershock.errors import ClusterError
from aftershock.faults.plan.check import load_plan
from aftershock.harness.cluster.kubernetes.api import Api, RefusedError
from aftershock.harness.cluster.kubernetes.cron import RESULT_MAX, cron_job, hindrances, keep_result
from aftershock.harness.lifecycle.launch_kubernetes import role

PLAN = "name: ours\n"


def test_the_objects_of_a_job_are_in_one_namespace_and_belong_together() -> None:
    objects = {item["kind"]: item for item in cron_job("ours", "tests", "0 2 * * *", PLAN, "runner:1", role("tests"))}
    assert {("ours", "tests")} == {(o["metadata"]["name"], o["metadata"]["namespace"]) for o in objects.values()}
    assert {"kind": "Role", "name": "ours"}.items() <= objects["RoleBinding"]["roleRef"].items()
    assert [{"kind": "ServiceAccount", "name": "ours", "namespace": "tests"}] == objects["RoleBinding"]["subjects"]
    assert {"plan.yaml": PLAN} == objects["ConfigMap"]["data"]
    spec = objects["CronJob"]["spec"]
    assert ("0 2 * * *", "Forbid") == (spec["schedule"], spec["concurrencyPolicy"])
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert ("ours", "runner:1") == (pod["serviceAccountName"], pod["containers"][0]["image"])
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


class Namespace:
    """The config maps of a namespace."""

    def __init__(self, **data: str) -> None:
        self.maps: dict[str, dict[str, str]] = {"ours-result": dict(data)} if data else {}

    def create(self, manifest: dict[str, Any]) -> None:
        if manifest["metadata"]["name"] in self.maps:
            raise RefusedError("it exists", 409)
        self.maps[manifest["metadata"]["name"]] = {}

    def find(self, _kind: str, _namespace: str, name: str) -> dict[str, Any] | None:
        return {"data": self.maps[name]} if name in self.maps else None

    def patch(self, _kind: str, _namespace: str, name: str, change: dict[str, Any]) -> None:
        merged = self.maps[name] | change["data"]
        self.maps[name] = {key: text for key, text in merged.items() if text is not None}


@pytest.mark.parametrize("before", [{}, {"run": "of yesterday", "verdict.json": "{}"}])
def test_a_result_replaces_that_of_the_run_before(before: dict[str, str]) -> None:
    namespace = Namespace(**before)
    assert keep_result(cast("Api", namespace), "tests", "ours", {"run": "today", "status": "FAIL"}) == "ours-result"
    assert {"run": "today", "status": "FAIL"} == namespace.maps["ours-result"]


def test_what_does_not_fit_is_left_out_and_never_cut() -> None:
    namespace = Namespace()
    texts = {"status": "PASS", "verdict.json": "x" * RESULT_MAX, "aftershock.prom": "gauges"}
    keep_result(cast("Api", namespace), "tests", "ours", texts)
    assert {"status": "PASS", "aftershock.prom": "gauges"} == namespace.maps["ours-result"]
    with pytest.raises(ClusterError, match="no part of the result fits into the config map ours-result"):
        keep_result(cast("Api", namespace), "tests", "ours", {"verdict.json": "x" * (RESULT_MAX + 1)})


@pytest.mark.parametrize(
    ("cluster", "arms", "says"),
    [
        ("kubernetes: {}", "a: {client: java}", "plan.yaml:4:65: the image of the runner has no client java (arm `a`)"),
        ("kubernetes: {context: prod}", "a: {}", "a pod has no kubeconfig"),
        ("kubernetes: {nodes: true}", "a: {}", "permits nothing about nodes"),
        ("kubernetes: {}", "a: {}, b: {client: reference}", ""),
    ],
)
def test_plans_that_a_job_cannot_run_are_refused(cluster: str, arms: str, says: str) -> None:
    """Before a night, and not in it."""
    text = f"name: ours\ncluster: {{{cluster}}}\ntopics: [{{name: t, partitions: 1, replication: 1}}]\n"
    text += f"workloads: [{{name: w, produce: {{topic: t, rate: 1/s}}, arms: {{{arms}}}}}]\n"
    assert says in "".join(hindrances(load_plan(text)))
    assert bool(says) == bool([*hindrances(load_plan(text))])
