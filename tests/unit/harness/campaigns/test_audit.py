"""The audit: plans for any clients, what runs again, and the card in its four forms."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from aftershock.errors import AftershockError, ClusterError, EvidenceError, ProgramError
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
from aftershock.results.evidence.manifest import digest_of, manifest_of
from aftershock.results.model.check import Check, Status
from aftershock.results.studies.suite import COPIES, Row, copies, registered
from aftershock.tests.unit.results.studies.audited import audited

CLIENTS = lab.parse_clients(["java", "mine-1.2=exec:./my_client --fast"], ["java:retry.backoff.ms=50"])
ALL = lab.planned(CLIENTS, None, {}, lab.scenarios_of("audit/2+"))
JUDGED = lab.planned(lab.parse_clients(["java", "reference"], []), None, {})


def job(planned: Planned) -> Job:
    checked = load_plan(find(planned.plan), planned.settings)
    return Job(None, checked, compile_checked(checked, 1), None, rehearse=False)


@pytest.mark.parametrize("planned", ALL, ids=lambda planned: planned.name)
def test_each_scenario_takes_any_client(planned: Planned) -> None:
    """The plan has copies of the clients as its arms, with their settings, faults for each of them, and no warning."""
    checked = load_plan(find(planned.plan), planned.settings)
    assert () == tuple(checked.warnings)
    workloads = {workload.name: workload for workload in checked.plan.workloads}
    arms = {name: arm for workload in workloads.values() for name, arm in workload.arms.items()}
    count, blocks = lab.layout(2, planned.name)
    assert {*copies("java", count), *copies("mine-1.2", count), "ideal"} == {*arms}
    assert ("./my_client", "--fast") == arms["mine-1.2-2nd"].command
    assert 50 == int(arms["java-2nd"].settings["retry.backoff.ms"])
    assert {"request.timeout.ms": 1000}.items() <= arms["ideal"].settings.items()
    assert blocks == checked.plan.blocks
    assert count * blocks >= registered().units
    assert len(checked.plan.why) > 80
    # copies read only where readers are compared, and each variant has all clients
    readers = {name for workload in workloads.values() if workload.consume for name in workload.arms}
    reads = registered().compares_readers(planned.name)
    assert ({*arms} if reads else {"java", "mine-1.2", "ideal"}) == readers
    for row in registered().rows_of(planned.name):
        own = [workloads[name] for name in (row.workload, row.workload + COPIES) if name in workloads]
        assert {*arms} == {name for workload in own for name in workload.arms}
    if planned.name == "member-dies":
        killed = [step.parameters["client"] for step in job(planned).timeline.steps if step.block == 1]
        assert [f"{arm} member 2" for arm in workloads["orders"].arms] == killed
        assert 6000 == arms["mine-1.2"].settings["session.timeout.ms"]
    # all groups have one coordinator, found by the first client's group
    brokers = {step.parameters["broker"] for step in job(planned).timeline.steps if "broker" in step.parameters}
    assert {"coordinator of readers-java", "any broker except coordinator of readers-java"} >= brokers
    assert (planned.name == "coordinator-killed") == ("coordinator of readers-java" in brokers)


@pytest.mark.parametrize(("clients", "count", "blocks"), [(1, 3, 2), (2, 3, 2), (3, 2, 3), (4, 1, 6), (7, 1, 6)])
def test_copies_and_repetitions_make_six_units(clients: int, count: int, blocks: int) -> None:
    assert (count, blocks) == lab.layout(clients, "host-vanishes")
    assert (min(count, 2), max(blocks, 3)) == lab.layout(clients, "member-dies")
    with pytest.raises(AftershockError, match="these are 8 clients, and a plan has room for 7; --try-advice counts"):
        lab.layout(8, "host-vanishes")


def test_a_whole_card_of_two_clients_takes_25_minutes() -> None:
    runs = lab.planned(lab.parse_clients(["librdkafka", "java"], []), None, {})
    assert sum(run.takes_s for run in runs) <= 25 * 60


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
    for workload in load_plan(find(planned.plan), planned.settings).plan.workloads:
        assert [arm.version for arm in workload.arms.values()] == ["2.2.0", "2.3.0", "3.9.1", "1.21.2", None]


def test_a_version_that_lacks_what_a_scenario_needs_is_refused_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = {"idempotence": "it has no idempotent producer"}
    program = Program("kafka-go", "0.4.51", ("kafka-go",), lacks, tmp_path)
    monkeypatch.setattr(arms, "built", lambda *_: program)
    monkeypatch.setattr(arms, "describe", lambda *_: {"refused": None})
    runs = lab.planned(lab.parse_clients(["kafka-go@0.4.51"], []), None, {})
    with pytest.raises(
        ProgramError, match=r"^leader-crashes: kafka-go@0\.4\.51, the client .*no idempotent"
    ) as refused:
        lab.require_programs(runs, print)
    assert 1 == len(str(refused.value).splitlines()), "once for all copies"
    lacks.clear()
    lab.require_programs(runs, print)


def test_one_cluster_serves_twelve_scenarios_and_another_one_three() -> None:
    """Otherwise each scenario would launch a cluster of its own."""
    specs = [str(job(planned).spec) for planned in ALL]
    assert {12, 3} == {specs.count(spec) for spec in specs}


def test_suites() -> None:
    """The larger suite has the smaller one's scenarios, and three more; a card names the smallest that has its runs."""
    assert ["packet-loss", "slow-disk", "power-loss"] == [planned.name for planned in ALL[12:]]
    with pytest.raises(AftershockError, match=r"--suite audit/3 is unknown; name audit/2 or audit/2\+"):
        lab.scenarios_of("audit/3")
    with pytest.raises(AftershockError, match=r"audit/1 is no longer run, and --from reads its stored cards"):
        lab.scenarios_of("audit/1")


@pytest.mark.parametrize(
    ("clients", "settings", "message"),
    [
        (["kafka"], [], "--client kafka is unknown; name librdkafka, java, reference, CLIENT@VERSION or exec:PROGRAM"),
        (["java", "exec:./java"], [], "another client is named java already; .* NAME=exec:./java"),
        (["java"], ["jav:a=b"], r"--settings jav:a=b is not CLIENT:KEY=VALUE .*\(java\)"),
        (["java"], ["java:a"], "is not CLIENT:KEY=VALUE"),
        (["ideal=java"], [], "the card has a name like ideal of its own; write NAME=java"),
        (["java-2nd=java"], [], "the card has a name like java-2nd of its own"),
        (["java-advised=java"], [], "the card has a name like java-advised of its own"),
    ],
)
def test_wrong_clients_are_refused(clients: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(AftershockError, match=message):
        lab.parse_clients(clients, settings)


@pytest.mark.parametrize("scenarios", [lab.SCENARIOS, lab.SUITES["audit/2+"][len(lab.SCENARIOS) :]])
def test_the_plans_of_a_suite_begin_alike(scenarios: Sequence[str]) -> None:
    """They differ in the fault, its limits, the time for recovery, some settings, and the members of the group.

    Further workloads differ from the first one in what their row is about: keys, or idempotence.
    """
    heads = set()
    for name in scenarios:
        data = load(find(f"audit/{name}")).data
        (workload, *variants), (topic, *_) = data["workloads"], data["topics"]
        arms = {arm: client["client"] for arm, client in workload["arms"].items()}
        consume = {key: value for key, value in workload["consume"].items() if key != "members"}
        timing = {key: value for key, value in data["timing"].items() if key != "recovery"}
        sized = {key: value for key, value in topic.items() if key != "config"}
        head = {"cluster": data["cluster"], "timing": timing, "blocks": data["blocks"], "topic": sized}
        heads.add(json.dumps({**head, "workload": {**workload, "arms": arms, "consume": consume}}, sort_keys=True))
        assert ("lost == 0", 2) == (data["slo"][0], topic["config"]["min.insync.replicas"])
        assert {"slo": "produce.success >= 100%", "gate": "report"} in data["slo"]
        for variant in variants:
            own = {**variant["produce"], "topic": "orders"}
            changed = {key for key in {*own, *workload["produce"]} if own.get(key) != workload["produce"].get(key)}
            assert {"unkeyed": {"keys"}, "plain": {"idempotence"}}[variant["name"]] == changed
    assert 1 == len(heads)


@pytest.mark.parametrize("row", registered().rows, ids=lambda row: row.id)
def test_a_plan_that_runs_alone_has_the_limit_of_its_row(row: Row) -> None:
    """By the registered formula, of the settings that its brokers have."""
    planned = next(planned for planned in ALL if planned.name == row.plan)
    limit_s = registered().limit_s(row, cards.broker_settings(job(planned).timeline.cluster))
    objectives = [entry.slo for entry in load_plan(find(planned.plan), ()).plan.objectives]
    fault = next(step for step in job(planned).timeline.steps if step.block == 1)
    if row.figure == "after_heal":
        limit_s += (fault.for_ms or 0) / 1000
    slo = {
        "recovery": f"recovery (p95 <= 10 * steady for 2s) < {{}} after {fault.entry}",
        "after_heal": f"recovery (p95 <= 10 * steady for 2s) < {{}} after {fault.entry}",
        "wait": f"produce.latency max < {{}} in fault/{fault.entry}",
        "p95": f"produce.latency p95 < {{}} in fault/{fault.entry}",
        "silence": "consume.unowned < {}"
        if row.plan == "member-dies"
        else f"consume.gap < {{}} in fault/{fault.entry}",
    }[row.figure]
    seconds = {slo.format(text) for text in (f"{limit_s:g}s", f"{limit_s * 1000:g}ms")}
    assert seconds & {*objectives}, (seconds, objectives)


def test_a_client_has_the_name_that_the_command_gives() -> None:
    clients = lab.parse_clients(["quick=java", "java", "python-3.1=exec:python3 a.py"], ["quick:retry.backoff.ms=50"])
    assert {"client": "java", "settings": {"retry.backoff.ms": 50}} == clients["quick"]
    assert {"client": "java"} == clients["java"]
    assert {"client": "exec", "command": ["python3", "a.py"]} == clients["python-3.1"]


FEW = [run for run in JUDGED if run.name in ("leader-frozen", "rack-cut")]
IN_README = [run for run in JUDGED if run.name in ("leader-frozen", "leader-slow", "rack-cut", *publish.IN_README)]
WORKLOADS = {"host-vanishes": ("orders", "unkeyed"), "acks-lost": ("orders", "plain")}
GOOD = Check("integrity/lost", "integrity", "arm=java produce", Status.PASS, 9, 1, "records", "none", 0.0, arm="java")
SLOW_S = 15.0


def perform(home: Path, planned: Planned, *checks: Check, java_s: float = 0.8) -> Path:
    """Write a judged run of two clients, java and reference, which need 0.8 s after a fault."""
    outages = {"java": java_s, "reference": 0.8, "ideal": 0.6}
    arms = {copy: [s] * 2 for name, s in outages.items() for copy in (copies(name, 3) if name != "ideal" else [name])}
    clients = {"java": "java", "reference": "reference"}
    workloads = WORKLOADS.get(planned.name, ("orders",))
    folder = home / f"run-{planned.name}"
    return audited(folder, arms, GOOD, *checks, plan=planned.name, workloads=workloads, clients=clients).home


def audit(
    home: Path, perform: Perform, said: list[str], budget_s: float | None = None, runs: Sequence[Planned] = JUDGED
) -> cards.Card:
    record = replace(lab.record_in(home), version=lab.VERSION)
    record = store.run_missing(record, home, runs, perform, said.append, budget_s)
    return cards.read_card(record, home, runs)


def stored_card(home: Path) -> cards.Card:
    return cards.read_stored_card(lab.record_in(home), home)


def test_a_card(tmp_path: Path) -> None:
    """A scenario whose cluster failed is missing, and runs again; the card's forms name what was slow, and its rank."""
    failing = {"half-open"}

    def once(planned: Planned) -> Path:
        if planned.name in failing:
            raise ClusterError("node 1 exited")
        return perform(tmp_path, planned, java_s=SLOW_S if planned.name == "leader-frozen" else 0.8)

    said: list[str] = []
    card = audit(tmp_path, once, said)
    assert {"half-open": "it failed: node 1 exited"} == card.missing
    assert ("12 of 13", "13 of 13", 1) == (card.marks("java"), card.marks("reference"), card.exit_code)
    failing.clear()
    performed: list[str] = []

    def again(planned: Planned) -> Path:
        performed.append(planned.name)
        return once(planned)

    card = audit(tmp_path, again, said)
    assert ["half-open"] == performed
    page = cards.write(card, tmp_path)
    terminal = " ".join(cards.text(card).split())
    assert all(len(line) <= 80 for line in cards.text(card).splitlines())
    frozen = terminal.partition("leader-frozen")[2].partition("leader-slow")[0]
    assert "limit 9 s = quorum + session + 2 backoff + slack the cluster alone: 0.6 s (0.6 to 0.6)" in frozen
    assert "the clients differ (100 % of the variance) ! java rank 2, 15.0 s (15.0 to 15.0), 14.2 s" in frozen
    assert "n = 6) behind reference" in frozen
    assert "recovery: 15" in frozen
    assert "✓ reference rank 1, 0.8" in frozen
    assert "no difference (0 % of the variance)" in terminal.partition("host-vanishes-unkeyed")[2]
    assert "2 repetitions of each fault for 3 copies of each client" in terminal
    assert f"limits registered as {registered().digest}" in terminal
    assert "the cluster: ✓ every check of the brokers passed; runs that FAILED: none" in terminal
    html = page.read_text()
    assert "run-leader-frozen/report.html" in html
    assert "its throughput stays" in html
    assert "Limit 9 s = quorum + session + 2 backoff + slack." in html
    assert (
        "| leader frozen | until the client works as before, from the fault: 9 s | 0.6 s"
        in (tmp_path / cards.MARKDOWN).read_text()
    )
    stored = json.loads((tmp_path / cards.DOCUMENT).read_text())
    assert ("audit/2", 28, {}) == (stored["suite"], len(stored["cells"]), stored["missing"])
    assert 14 == len(stored["rows"])
    badge = ET.fromstring((tmp_path / cards.BADGE).read_text())  # noqa: S314 -- we wrote it ourselves
    assert "aftershock: java 13 of 14; reference 14 of 14" == badge.get("aria-label")


@pytest.mark.parametrize(
    ("check", "mark", "expected"),
    [
        (
            replace(GOOD, id="integrity/replica", arm=None, subject="log", status=Status.FAIL, why="2 replicas differ"),
            "broken",
            "✗ rack cut: integrity/replica: 2 replicas differ; runs that FAILED: rack cut",
        ),
        (
            replace(GOOD, arm="ideal", status=Status.INCONCLUSIVE, why="it is late"),
            "open",
            "? rack cut: integrity/lost undecided; runs that FAILED: none",
        ),
        # a client's own failure is in its cell, and the run failed all the same
        (replace(GOOD, status=Status.FAIL), "kept", "✓ every check of the brokers passed; runs that FAILED: rack cut"),
    ],
)
def test_what_no_client_is_to_blame_for_has_a_row(tmp_path: Path, check: Check, mark: str, expected: str) -> None:
    """A card whose clients kept every promise is not good if a run failed."""

    def once(planned: Planned) -> Path:
        return perform(tmp_path, planned, *([check] if planned.name == "rack-cut" else []))

    card = audit(tmp_path, once, [], runs=FEW)
    assert (mark, expected) == (card.cluster_mark, cards.cluster_text(card))
    assert card.exit_code == (2 if mark == "open" else 1)
    assert expected in cards.markdown(card)
    page = cards.write(card, tmp_path).read_text()
    assert expected in page
    assert ("FAILED, whoever is to blame: rack cut" in page) == (mark != "open")


def java_alone(home: Path, planned: Planned) -> Path:
    arms = {copy: [0.8, 0.8] for copy in copies("java", 3)} | {"ideal": [0.6, 0.6]}
    workloads = WORKLOADS.get(planned.name, ("orders",))
    return audited(home / f"run-{planned.name}", arms, plan=planned.name, workloads=workloads).home


def test_a_client_that_the_brokers_cannot_serve_is_named(tmp_path: Path) -> None:
    """Kafka 3.9 has KIP-848's groups only as a preview: a client with them is not audited, and others are."""
    clients = lab.parse_clients(["reference", "java"], ["reference:group.protocol=consumer"])
    refused = lab.refusals(clients, "3.9.1")
    runs = lab.planned(clients, "3.9.1", refused)
    arms = {
        name for run in runs for load in load_plan(find(run.plan), run.settings).plan.workloads for name in load.arms
    }
    assert {*copies("java", 3), "ideal"} == arms
    record = replace(lab.record_in(tmp_path), version=lab.VERSION, left_out=refused)
    record = store.run_missing(record, tmp_path, runs, lambda planned: java_alone(tmp_path, planned), lambda _: None)
    card = cards.read_card(record, tmp_path, runs)
    assert ("14 of 14", "0 of 0", 2) == (card.marks("java"), card.marks("reference"), card.exit_code)
    assert "n/a reference" in cards.text(card)
    assert "the setting `group.protocol: classic`" in cards.write(card, tmp_path).read_text()
    markdown = cards.markdown(card)
    assert 14 == markdown.count(" | n/a |\n")
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
    assert 2 == cards.read_card(lab.record_in(tmp_path), tmp_path, JUDGED).exit_code
    assert 0 == audit(tmp_path, lambda planned: perform(tmp_path, planned), []).exit_code
    larger = lab.planned(lab.parse_clients(["java", "reference"], []), None, {}, lab.scenarios_of("audit/2+"))
    card = cards.read_card(lab.record_in(tmp_path), tmp_path, larger)
    assert ("audit/2+", 2, 3) == (card.suite, card.exit_code, len(card.missing))


def test_a_budget_leaves_scenarios_out_by_name(tmp_path: Path) -> None:
    said = list[str]()
    budget_s = JUDGED[0].takes_s + JUDGED[1].takes_s + 1
    audit(tmp_path, lambda planned: perform(tmp_path, planned), said, budget_s)
    assert any(line.startswith("2 of them fit into the budget; left for later: leader-frozen, ") for line in said)
    with pytest.raises(AftershockError, match=r"too small for any scenario; the shortest takes \d+ s"):
        lab.require_budget(JUDGED, 30)


def test_evidence_of_a_card(tmp_path: Path) -> None:
    """Reduced evidence gives the same card, as text and in the gallery, without commands; changes are refused."""
    home = tmp_path / "audit"

    def once(planned: Planned) -> Path:
        made = perform(home, planned, java_s=SLOW_S if planned.name == "leader-frozen" else 0.8)
        path = made / "timeline.json"
        timeline = json.loads(path.read_text())
        timeline["workloads"][0]["arms"]["reference"]["command"] = ["/root/other"]
        path.write_text(json.dumps(timeline))
        (made / "manifest.json").write_text(json.dumps(manifest_of(made)))
        return made

    audit(home, once, [], runs=IN_README)
    card = stored_card(home)
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
    assert "* java, leader frozen: recovery: 15" in text
    record = lab.record_in(stored)
    exchanged = {**record.runs, "rack-cut": record.runs["leader-slow"]}
    with pytest.raises(AftershockError, match="run-leader-slow: it ran the plan leader-slow, not rack-cut; restore"):
        cards.read_stored_card(replace(record, runs=exchanged), stored)
    with pytest.raises(AftershockError, match=r"has no campaign\.json; name the folder with the runs of audit"):
        store.require_record(tmp_path, lab.NAME)


def rewritten(home: Path) -> None:
    """Write the manifest of reduced evidence again, as a forger would."""
    path = home / "manifest.json"
    document = json.loads(path.read_text())
    document["digests"] = {name: asdict(digest) for name in document["files"] if (digest := digest_of(home / name))}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("name", ["analysis.json", "verdict.json"])
def test_the_manifest_of_evidence_covers_the_verdict_and_the_measurements(tmp_path: Path, name: str) -> None:
    home = tmp_path / "audit"
    audit(home, lambda planned: perform(home, planned), [], runs=FEW)
    cards.reduce(home, tmp_path / "stored")
    run = tmp_path / "stored" / "run-leader-frozen"
    (run / name).write_text((run / name).read_text() + " ")
    with pytest.raises(EvidenceError, match=f"run-leader-frozen: the evidence differs .* {name}: changed after"):
        stored_card(tmp_path / "stored")


def test_figures_are_counted_from_records_and_not_taken_from_the_measurements(tmp_path: Path) -> None:
    """A forged measurement changes nothing, even with a manifest that fits; a changed record does."""
    home = tmp_path / "audit"
    audit(home, lambda planned: perform(home, planned), [], runs=FEW)
    card = stored_card(home)
    cards.reduce(home, tmp_path / "stored")
    run = tmp_path / "stored" / "run-leader-frozen"
    forged = {"fault": "f-1", "client": "orders/java", "n": 9, "recovered_us": 3_300_000, "observed_us": 9_000_000}
    analysis = json.loads((run / "analysis.json").read_text())
    (run / "analysis.json").write_text(json.dumps({**analysis, "recoveries": [forged]}))
    rewritten(run)
    assert card == stored_card(tmp_path / "stored")
    path = run / "outcomes" / "part-0.parquet"
    rows = pq.read_table(path)
    late = pc.and_(pc.equal(rows["arm"], "java"), pc.greater(rows["intended_us"], 20_000_000))
    done_us = pc.if_else(late, pc.add(rows["done_us"], 2_000_000), rows["done_us"])
    pq.write_table(rows.set_column(rows.schema.get_field_index("done_us"), "done_us", done_us), path)
    rewritten(run)
    assert card != stored_card(tmp_path / "stored")


def test_the_limits_of_another_registration_do_not_judge_stored_runs(tmp_path: Path) -> None:
    audit(tmp_path, lambda planned: perform(tmp_path, planned), [], runs=FEW)
    path = tmp_path / store.NAME
    path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(EvidenceError, match="the runs are evidence of version 3 of audit, and cannot decide version 2"):
        stored_card(tmp_path)


def test_a_card_for_the_gallery_has_tried_its_advice(tmp_path: Path) -> None:
    home = tmp_path / "out" / "audit"
    audit(home, lambda planned: perform(home, planned, java_s=SLOW_S), [], runs=FEW)
    with pytest.raises(AftershockError, match=r"java, leader frozen: its advice was not tried; run .* --try-advice"):
        publish.gallery(str(tmp_path / "gallery"), "", "", "clients", str(tmp_path / "out"))
