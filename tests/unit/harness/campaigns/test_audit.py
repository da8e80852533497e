"""The audit: plans for any clients, what runs again, and the card in its four forms."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aftershock.errors import AftershockError, ClusterError, ProgramError
from aftershock.faults.plan.check import load_plan
from aftershock.faults.plans import find
from aftershock.faults.sections.document import load
from aftershock.faults.timeline.compile import compile_checked
from aftershock.harness.campaigns import audit as lab
from aftershock.harness.campaigns import card as cards
from aftershock.harness.campaigns import publish, store
from aftershock.harness.campaigns.store import Perform, Planned
from aftershock.harness.clients import arms
from aftershock.harness.clients.build import Program
from aftershock.harness.run.job import Job
from aftershock.results.evidence.manifest import manifest_of
from aftershock.results.model.check import Check
from aftershock.results.studies.audit import RECOVERED
from aftershock.tests.unit.results.studies.test_audit import GOOD, SLOW, run

CLIENTS = lab.parse_clients(["java", "mine-1.2=exec:./my_client --fast"], ["java:retry.backoff.ms=50"])
ALL = lab.planned(CLIENTS, None, {}, lab.scenarios_of("audit/1+"))
JUDGED = lab.planned(lab.parse_clients(["java", "reference"], []), None, {})


def job(planned: Planned) -> Job:
    checked = load_plan(find(planned.plan), planned.settings)
    return Job(None, checked, compile_checked(checked, 1), None, rehearse=False)


@pytest.mark.parametrize("planned", ALL, ids=lambda planned: planned.name)
def test_each_scenario_takes_any_client(planned: Planned) -> None:
    """The plan has the clients as its arms, with their settings, faults for each of them, and no warning."""
    checked = load_plan(find(planned.plan), planned.settings)
    assert () == tuple(checked.warnings)
    (workload,) = checked.plan.workloads
    assert ["java", "mine-1.2"] == [*workload.arms]
    assert ("./my_client", "--fast") == workload.arms["mine-1.2"].command
    assert 50 == int(workload.arms["java"].settings["retry.backoff.ms"])
    assert checked.plan.blocks == lab.BLOCKS
    assert len(checked.plan.why) > 80
    # a card has no recovery in a run whose plan does not judge it by the card's definition
    shown = any(RECOVERED in str(entry.slo) for entry in checked.plan.objectives)
    assert shown == (planned.name not in {"member-dies", "leader-slow"})
    if planned.name == "member-dies":
        killed = [step.parameters["client"] for step in job(planned).timeline.steps if step.block == 1]
        assert ["java member 2", "mine-1.2 member 2"] == killed
        assert 6000 == workload.arms["mine-1.2"].settings["session.timeout.ms"]
    # all groups have one coordinator, found by the first client's group
    brokers = {step.parameters["broker"] for step in job(planned).timeline.steps if "broker" in step.parameters}
    assert {"coordinator of readers-java", "any broker except coordinator of readers-java"} >= brokers
    assert (planned.name == "coordinator-killed") == ("coordinator of readers-java" in brokers)


VERSIONS = lab.parse_clients(["librdkafka@2.2.0", "new=librdkafka@2.3.0", "java@3.9.1", "franz-go@1.21.2"], [])


def test_versions_are_clients_with_names_of_their_own() -> None:
    assert ["librdkafka-2.2.0", "new", "java-3.9.1", "franz-go-1.21.2"] == [*VERSIONS]
    assert {"client": "librdkafka", "version": "2.3.0"} == VERSIONS["new"]
    with pytest.raises(AftershockError, match="no version of `nope` can be chosen"):
        lab.parse_clients(["nope@1.0.0"], [])
    with pytest.raises(AftershockError, match="another client is named"):
        lab.parse_clients(["sarama@1.45.0", "sarama@1.45.0"], [])


@pytest.mark.parametrize("planned", lab.planned(VERSIONS, None, {}), ids=lambda planned: planned.name)
def test_each_scenario_takes_any_version(planned: Planned) -> None:
    (workload,) = load_plan(find(planned.plan), planned.settings).plan.workloads
    assert [arm.version for arm in workload.arms.values()] == ["2.2.0", "2.3.0", "3.9.1", "1.21.2"]


def test_a_version_that_lacks_what_a_scenario_needs_is_refused_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = {"idempotence": "it has no idempotent producer"}
    program = Program("kafka-go", "0.4.51", ("kafka-go",), lacks, tmp_path)
    monkeypatch.setattr(arms, "built", lambda *_: program)
    monkeypatch.setattr(arms, "describe", lambda *_: {"refused": None})
    runs = lab.planned(lab.parse_clients(["kafka-go@0.4.51"], []), None, {})
    with pytest.raises(ProgramError, match=r"leader-crashes\.yaml:\d+:\d+: kafka-go@0\.4\.51.*no idempotent producer"):
        lab.require_programs(runs, print)
    lacks.clear()
    lab.require_programs(runs, print)


def test_one_cluster_serves_twelve_scenarios_and_another_one_three() -> None:
    """Otherwise each scenario would launch a cluster of its own."""
    specs = [str(job(planned).spec) for planned in ALL]
    assert {12, 3} == {specs.count(spec) for spec in specs}


def test_suites() -> None:
    """The larger suite has the smaller one's scenarios, and three more; a card names the smallest that has its runs."""
    assert ["packet-loss", "slow-disk", "power-loss"] == [planned.name for planned in ALL[12:]]
    with pytest.raises(AftershockError, match=r"--suite audit/2 is unknown; name audit/1 or audit/1\+"):
        lab.scenarios_of("audit/2")


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        (["kafka"], [], "--client kafka is unknown; name librdkafka, java, reference, CLIENT@VERSION or exec:PROGRAM"),
        (["java", "exec:./java"], [], "another client is named java already; .* NAME=exec:./java"),
        (["java"], ["jav:a=b"], r"--settings jav:a=b is not CLIENT:KEY=VALUE .*\(java\)"),
        (["java"], ["java:a"], "is not CLIENT:KEY=VALUE"),
    ],
)
def test_wrong_clients_are_refused(clients: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(AftershockError, match=message):
        lab.parse_clients(clients, settings)


@pytest.mark.parametrize("scenarios", [lab.SCENARIOS, lab.SUITES["audit/1+"][len(lab.SCENARIOS) :]])
def test_the_plans_of_a_suite_begin_alike(scenarios: Sequence[str]) -> None:
    """They differ in the fault, its limits, the time for recovery, some settings, and the members of the group."""
    heads = set()
    for name in scenarios:
        data = load(find(f"audit/{name}")).data
        (workload,), (topic,) = data["workloads"], data["topics"]
        arms = {arm: client["client"] for arm, client in workload["arms"].items()}
        consume = {key: value for key, value in workload["consume"].items() if key != "members"}
        timing = {key: value for key, value in data["timing"].items() if key != "recovery"}
        sized = {key: value for key, value in topic.items() if key != "config"}
        head = {"cluster": data["cluster"], "timing": timing, "blocks": data["blocks"], "topic": sized}
        heads.add(json.dumps({**head, "workload": {**workload, "arms": arms, "consume": consume}}, sort_keys=True))
        assert ("lost == 0", 2) == (data["slo"][0], topic["config"]["min.insync.replicas"])
        assert {"slo": "produce.success >= 100%", "gate": "report"} in data["slo"]
    assert 1 == len(heads)


def test_a_client_has_the_name_that_the_command_gives() -> None:
    clients = lab.parse_clients(["quick=java", "java", "python-3.1=exec:python3 a.py"], ["quick:retry.backoff.ms=50"])
    assert {"client": "java", "settings": {"retry.backoff.ms": 50}} == clients["quick"]
    assert {"client": "java"} == clients["java"]
    assert {"client": "exec", "command": ["python3", "a.py"]} == clients["python-3.1"]


def perform(home: Path, planned: Planned, *checks: Check) -> Path:
    """Write a judged run of two clients, whose arms are java and other."""
    made = run(home / f"run-{planned.name}", GOOD, *checks)
    documents = {
        "run": {**made.run.run, "schema_version": 1, "plan": planned.name, "versions": {"kafka": "4.3.1"}},
        "timeline": {**made.run.timeline, "schema_version": 1, "cluster": {}},
        "analysis": {**made.run.analysis, "schema_version": 2},
        "verdict": made.run.verdict.to_json(),
    }
    for name, document in documents.items():
        (made.home / f"{name}.json").write_text(json.dumps(document))
    for name in ("plan.yaml", "journal.jsonl"):
        (made.home / name).write_text("")
    (made.home / "manifest.json").write_text(json.dumps(manifest_of(made.home)))
    return made.home


def audit(home: Path, perform: Perform, said: list[str], budget_s: float | None = None) -> cards.Card:
    record = store.run_missing(store.read(home, lab.NAME), home, JUDGED, perform, said.append, budget_s)
    return cards.read_card(record, home, JUDGED)


def stored_card(home: Path) -> cards.Card:
    return cards.read_stored_card(store.read(home, lab.NAME), home)


def test_a_card(tmp_path: Path) -> None:
    """A scenario whose cluster failed is missing, and runs again; the card's forms name what was slow."""
    failing = {"half-open"}

    def once(planned: Planned) -> Path:
        if planned.name in failing:
            raise ClusterError("node 1 exited")
        checks = [replace(SLOW, id="slo/recovery-slow")] if planned.name == "leader-slow" else []
        return perform(tmp_path, planned, *checks)

    said: list[str] = []
    card = audit(tmp_path, once, said)
    assert {"half-open": "it failed: node 1 exited"} == card.missing
    assert ("10 of 11", "11 of 11", 1) == (card.marks("java"), card.marks("other"), card.exit_code)
    failing.clear()
    performed: list[str] = []

    def again(planned: Planned) -> Path:
        performed.append(planned.name)
        return once(planned)

    card = audit(tmp_path, again, said)
    assert ["half-open"] == performed
    page = cards.write(card, tmp_path)
    terminal = cards.text(card)
    assert all(len(line) <= 80 for line in terminal.splitlines())
    assert (
        "leader-slow\n  ! java   3.3 s (3.1 to 3.6), gap 6.0 s, p95 3.5 times\n    recovery-slow: 7 s, limit 6 s"
        in terminal
    )
    assert "✓ other  3.3 s (3.1 to 3.6), gap longer than a repetition, 2 failed" in terminal
    html = page.read_text()
    assert "run-leader-slow/report.html" in html
    assert "its throughput stays" in html
    assert "| leader slow | ! 3.3 s" in (tmp_path / cards.MARKDOWN).read_text()
    stored = json.loads((tmp_path / cards.DOCUMENT).read_text())
    assert ("audit/1", 24, {}) == (stored["suite"], len(stored["cells"]), stored["missing"])
    badge = ET.fromstring((tmp_path / cards.BADGE).read_text())  # noqa: S314 -- we wrote it ourselves
    assert "aftershock: java 11 of 12; other 12 of 12" == badge.get("aria-label")


def test_a_client_that_the_brokers_cannot_serve_is_named(tmp_path: Path) -> None:
    """Kafka 3.9 has KIP-848's groups only as a preview: a client with them is not audited, and others are."""
    clients = lab.parse_clients(["reference", "java"], ["reference:group.protocol=consumer"])
    refused = lab.refusals(clients, "3.9.1")
    runs = lab.planned(clients, "3.9.1", refused)
    assert {("java",)} == {tuple(load_plan(find(run.plan), run.settings).plan.workloads[0].arms) for run in runs}
    record = replace(store.read(tmp_path, lab.NAME), left_out=refused)
    record = store.run_missing(record, tmp_path, runs, lambda planned: perform(tmp_path, planned), lambda _: None)
    card = cards.read_card(record, tmp_path, runs)
    assert ("12 of 12", "0 of 0", 2) == (card.marks("java"), card.marks("reference"), card.exit_code)
    assert "n/a reference" in cards.text(card)
    assert "the setting `group.protocol: classic`" in cards.write(card, tmp_path).read_text()
    markdown = cards.markdown(card)
    assert 12 == markdown.count("2 failed | n/a |\n")
    assert 1 == markdown.count("n/a: reference: Kafka 3.9.1 has the group protocol `consumer`")
    assert card == stored_card(tmp_path)
    cards.reduce(tmp_path, tmp_path / "stored")
    assert card == stored_card(tmp_path / "stored")


def test_brokers_that_can_serve_no_client_are_refused() -> None:
    clients = lab.parse_clients(["reference"], ["reference:group.protocol=consumer"])
    with pytest.raises(AftershockError, match=r"^Kafka 3.9.1 can serve none of the clients. Kafka 3.9.1 has the group"):
        lab.planned(clients, "3.9.1", lab.refusals(clients, "3.9.1"))
    assert not lab.refusals(lab.parse_clients(["reference"], []), "3.9.1")
    assert not lab.refusals(clients, None)


def test_exit_codes(tmp_path: Path) -> None:
    """2 as long as nothing is known, or a scenario is missing."""
    assert 2 == cards.read_card(store.read(tmp_path, lab.NAME), tmp_path, JUDGED).exit_code
    assert 0 == audit(tmp_path, lambda planned: perform(tmp_path, planned), []).exit_code
    larger = lab.planned(lab.parse_clients(["java", "reference"], []), None, {}, lab.scenarios_of("audit/1+"))
    card = cards.read_card(store.read(tmp_path, lab.NAME), tmp_path, larger)
    assert ("audit/1+", 2, 3) == (card.suite, card.exit_code, len(card.missing))


def test_a_budget_leaves_scenarios_out_by_name(tmp_path: Path) -> None:
    said = list[str]()
    budget_s = JUDGED[0].takes_s + JUDGED[1].takes_s + 1
    audit(tmp_path, lambda planned: perform(tmp_path, planned), said, budget_s)
    assert any(line.startswith("2 of them fit into the budget; left for later: leader-frozen, ") for line in said)
    with pytest.raises(AftershockError, match=r"too small for six .* the shortest takes \d+ s"):
        lab.require_budget(JUDGED, 30)


def test_evidence_of_a_card(tmp_path: Path) -> None:
    """Reduced evidence gives the same card, as text and in the gallery, without commands; changes are refused."""
    home = tmp_path / "audit"

    def once(planned: Planned) -> Path:
        checks = [replace(SLOW, id="slo/recovery-slow")] if planned.name == "leader-slow" else []
        return perform(home, planned, *checks)

    card = audit(home, once, [])
    stored = tmp_path / "gallery" / "clients"
    cards.reduce(home, stored)
    assert card == stored_card(stored)
    assert "/root/other" not in (stored / "run-leader-slow" / "timeline.json").read_text()
    page, readme = tmp_path / "GALLERY.md", tmp_path / "README.md"
    for path in (page, readme):
        path.write_text(
            "# Title\n\n<!-- cards: written by `make gallery` from stored evidence -->\n<!-- cards end -->\n"
        )
    publish.gallery(str(stored.parent), str(page), str(readme))
    assert [line.split(" | ")[0] for line in readme.read_text().splitlines() if "✓" in line] == [
        "| leader crashes",
        "| coordinator killed",
        "| acks lost",
    ]
    text = page.read_text()
    assert cards.markdown(card).strip() in text
    assert "* java, leader slow: recovery-slow: 7 s, limit 6 s" in text
    record = store.read(stored, lab.NAME)
    exchanged = {**record.runs, "rack-cut": record.runs["leader-slow"]}
    with pytest.raises(AftershockError, match="run-leader-slow: it ran the plan leader-slow, not rack-cut; restore"):
        cards.read_stored_card(replace(record, runs=exchanged), stored)
    (stored / "run-leader-slow" / "analysis.json").write_text("{}")
    with pytest.raises(AftershockError, match="run-leader-slow"):
        stored_card(stored)
    with pytest.raises(AftershockError, match=r"has no campaign\.json; name the folder with the runs of audit"):
        store.require_record(tmp_path, lab.NAME)
