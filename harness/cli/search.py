"""Commands ``audit``, ``explore``, ``minimise``, ``kip`` and ``durability``, which run many plans.

The exit code of ``explore`` is 0 if no run failed, 1 if a run failed, and 2 if no run passed or failed. The exit code
of ``minimise`` is 0 if a smaller failing plan was written, and 2 if the failure is intermittent, or the time budget
ended first. The exit code of ``kip`` is 0 if all claims are confirmed, 1 if a claim is contradicted, and 2 if a claim
is undecided. The exit code of ``durability`` is 0 if no record was lost that Kafka promises to keep, 1 if one was lost,
and 2 if runs are missing or can't be trusted. The exit code of ``audit`` is 0 if every client kept every promise, 1 if
one was slow or broke a promise, and 2 if scenarios are missing or undecided. Exit code 3 means an error.
"""

import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError
from aftershock.harness.cli.options import (
    AllowExecOption,
    BudgetOption,
    JsonOption,
    OutOption,
    RunArgument,
    RunsSeedOption,
    SparkOption,
    budget_s,
)


def explore(
    frame: Annotated[
        str,
        typer.Argument(metavar="PLAN", help="Plan with cluster, topics, clients and SLOs; faults are added at random."),
    ] = "explore",
    budget: Annotated[
        str,
        typer.Option(metavar="TIME", help="Time budget, for example 20m; no run starts that would exceed the budget."),
    ] = "20m",
    seed: Annotated[
        int, typer.Option(help="Seed of the random plans; a later search with the same seed draws new plans.")
    ] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder that holds the runs, the coverage and the corpus.")
    ] = Path("runs"),
    allow_exec: AllowExecOption = False,
    as_json: JsonOption = False,
    spark: SparkOption = None,
) -> int:
    """Search for failures with random faults; plans that failed before run first, then the least tested faults."""
    from rich.console import Console

    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.search.swarm import frame_of
    from aftershock.harness.campaigns.runner import warm_cluster
    from aftershock.harness.run.job import refuse_programs
    from aftershock.harness.run.progress import Progress, annotate_github
    from aftershock.harness.search import corpus
    from aftershock.harness.search import explore as lab
    from aftershock.results.model.check import Status

    console = Console(stderr=True, highlight=False)
    progress = Progress(console)
    time_left = lab.Budget(budget_s(budget), time.monotonic)
    checked = load_plan(find(frame))
    if not allow_exec:
        refuse_programs(checked)
    request = lab.SearchRequest(frame_of(checked), seed, out, datetime.now(UTC).date(), allow_exec)
    coverage, known_failures = lab.read(out / lab.NAME), corpus.read(out / corpus.NAME)
    for message in (*coverage.broken, *known_failures.skipped):
        progress.log(message)
    lab.require_budget_for_first_run(request, coverage, time_left)
    with warm_cluster("explore", out, spark, progress, console) as run_plan:
        search = lab.Search(request, time_left, run_plan, progress.log)
        coverage = search.go(coverage, known_failures)
    annotate_github([run.home for run in search.runs if run.home and run.status is Status.FAIL])
    if as_json:
        print(json.dumps(lab.document(request, coverage, search.runs), indent=1))
    else:
        print(lab.text(request, coverage, search.runs))
    print(f"coverage: {out / lab.NAME}", file=sys.stderr)
    return lab.exit_code(search.runs)


def minimise(
    run: RunArgument,
    budget: Annotated[
        str, typer.Option(metavar="DURATION", help="Time budget of the search, for example 15m or 600s.")
    ] = "15m",
    out: OutOption = Path("runs"),
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Failed check that the smaller plan must fail too (default: all failed checks)."
        ),
    ] = None,
    allow_exec: AllowExecOption = False,
    spark: SparkOption = None,
    as_json: JsonOption = False,
) -> int:
    """Reduce the plan of a failed run to the fewest, shortest and weakest faults that fail the same way."""
    from aftershock.harness.run.progress import Progress
    from aftershock.harness.run.runs import find_run
    from aftershock.harness.search import corpus
    from aftershock.harness.search import minimise_runs as execution
    from aftershock.harness.search.minimise import Cache, Minimisation, source_of
    from aftershock.results.report.page import write_report

    limit_s = budget_s(budget)
    source = source_of(find_run(run, out), check or ())
    folder = out / "minimise" / source.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AftershockError(f"can't write to {folder}: {error.strerror}; choose another --out") from error
    log = Progress().log
    log(f"to watch: tail -f {folder / 'progress.log'}")
    with execution.warm_clusters(source, folder, spark, allow_exec=allow_exec) as perform:
        cache = Cache(folder / "cache.jsonl", log)
        story = Minimisation(
            source, cache, perform, time.monotonic, log, lambda so_far: execution.write(so_far, folder)
        )
        result = story.play(limit_s)
    execution.write(result, folder)
    last = folder / "runs" / result.last_failing
    if result.last_failing and (last / "analysis.json").exists():
        write_report(last)
        log(f"report: {last / 'report.html'}")
    if path := execution.keep(result, folder, out / corpus.NAME, datetime.now(UTC).date()):
        log(f"in the corpus: {path}")
    print(json.dumps(execution.to_json(result, folder), indent=1) if as_json else execution.text(result, folder))
    return result.exit_code


def kip(
    selection: Annotated[str, typer.Argument(metavar="N|all", help="Number of a KIP, or `all`.")],
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time budget, for example 30m; it selects claims, never fewer units. Default for `all`: 60m.",
        ),
    ] = None,
    seed: RunsSeedOption = 1,
    out: OutOption = Path("runs"),
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Judge the stored evidence of one KIP in DIR; run nothing."),
    ] = None,
    sabotage: Annotated[
        bool,
        typer.Option(
            "--sabotage",
            help="Run with the KIP switched off where it should be on: exit code 0 if no claim is confirmed, else 1.",
        ),
    ] = False,
    allow_exec: AllowExecOption = False,
    as_json: JsonOption = False,
) -> int:
    """Test the claims of a KIP by performing the missing runs and judging each claim from the evidence."""
    from aftershock.harness.campaigns import kip as lab
    from aftershock.harness.campaigns import store
    from aftershock.harness.campaigns.kip_trials import select_trials
    from aftershock.results.studies.trials.claim import any_confirmed, exit_code

    trials = [trial.sabotage() if sabotage else trial for trial in select_trials(selection)]
    if source is not None:
        if len(trials) > 1 or budget is not None:
            raise AftershockError("--from judges the evidence of one KIP, without a budget: name the KIP")
        store.require_record(source, trials[0].name)
        results = [lab.read_result(trials[0], source)]
        print(json.dumps(lab.document(results), indent=1) if as_json else lab.text(results[0]))
        return exit_code([results[0].verdict.word])

    from aftershock.harness.campaigns.kip_budget import plan_within_budget
    from aftershock.harness.campaigns.runner import on_new_clusters
    from aftershock.harness.run.progress import Progress

    progress = Progress()
    limit = budget or ("60m" if len(trials) > 1 else None)
    homes = {trial: lab.home_of(trial, out) for trial in trials}
    stored = [part for trial, home in homes.items() for part in lab.stored_parts(trial, home, seed)]
    allotment = plan_within_budget(trials, None if limit is None else budget_s(limit), stored)
    if not allotment.decides:
        progress.log(f"--budget {limit} decides no claim, so nothing is run")
    for line in allotment.forecast():
        progress.log(line)
    if not allotment.decides:
        return 2
    progress.log(f"the missing runs take about {allotment.takes_s / 60:.0f} min")
    results = []
    for trial, home in homes.items():
        perform = on_new_clusters(home, seed, progress, allow_exec=allow_exec)
        lab.run_missing(trial, allotment, home, seed, perform, progress.log)
        results.append(lab.read_result(trial, home))
        progress.log(f"report: {lab.write(trial, results[-1], home)}")
    print(json.dumps(lab.document(results), indent=1) if as_json else "\n\n".join(map(lab.text, results)))
    if sabotage:
        return int(any(any_confirmed(result.statements) for result in results))
    return exit_code([result.verdict.word for result in results])


def durability(
    budget: BudgetOption = None,
    seed: RunsSeedOption = 1,
    out: OutOption = Path("runs"),
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Read the stored evidence in DIR; run nothing.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure which acknowledged records power cuts destroy, by failure domain and configuration."""
    from aftershock.harness.campaigns import durability as lab
    from aftershock.harness.campaigns import store

    if source is not None:
        store.require_record(source, lab.NAME)
        result = lab.read_result(store.read(source, lab.NAME), source)
    else:
        from aftershock.harness.campaigns.runner import on_new_clusters
        from aftershock.harness.run.progress import Progress

        progress, home = Progress(), out / lab.NAME
        record = store.read(home, lab.NAME, seed=seed)
        limit_s, perform = budget_s(budget) if budget else None, on_new_clusters(home, seed, progress)
        record = store.run_missing(record, home, lab.RUNS, perform, progress.log, limit_s)
        result = lab.read_result(record, home, current=True)
        progress.log(f"report: {lab.write_page(result, home)}")
    print(json.dumps(lab.document(result), indent=1) if as_json else lab.text(result))
    return result.exit_code


def audit(
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="[NAME=]CLIENT",
            help="librdkafka, java, reference, CLIENT@VERSION (librdkafka@2.3.0), or exec:PROGRAM; repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(metavar="CLIENT:KEY=VALUE", help="A setting of one of the clients; repeatable."),
    ] = None,
    try_advice: Annotated[
        bool, typer.Option("--try-advice", help="Beside each client, run it with the settings that advice names.")
    ] = False,
    against: Annotated[str | None, typer.Option(metavar="VERSION", help="Kafka version of the brokers.")] = None,
    suite: Annotated[
        str, typer.Option(metavar="NAME", help="audit/2, or audit/2+ with lost packets, a slow disk and a power loss.")
    ] = "audit/2",
    budget: BudgetOption = None,
    seed: RunsSeedOption = 1,
    out: OutOption = Path("runs"),
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Print the card of stored evidence; run nothing.")
    ] = None,
    as_json: JsonOption = False,
    spark: SparkOption = None,
) -> int:
    """Audit clients: twelve failures, six units of each, with the clients side by side, and a report card."""
    from rich.console import Console

    from aftershock.faults.plans import find
    from aftershock.harness.adhoc.conformance import refuse_nonconforming
    from aftershock.harness.campaigns import audit as lab
    from aftershock.harness.campaigns import card as cards
    from aftershock.harness.campaigns import store
    from aftershock.harness.campaigns.runner import warm_cluster
    from aftershock.harness.campaigns.store import Planned
    from aftershock.harness.clients.build import built
    from aftershock.harness.run.job import prepare
    from aftershock.harness.run.progress import Progress

    def show(card: cards.Card) -> int:
        print(json.dumps(cards.document(card), indent=1) if as_json else cards.text(card))
        return card.exit_code

    if source is not None:
        store.require_record(source, lab.NAME)
        return show(cards.read_stored_card(lab.record_in(source), source))
    if not client:
        raise AftershockError("--client is missing; name at least one client, or stored evidence with --from")
    clients = lab.parse_clients(client, settings or ())
    if try_advice:
        clients = lab.with_advised(clients)
    limit_s, home = budget_s(budget) if budget else None, out / lab.NAME
    scenarios = lab.scenarios_of(suite)
    refused = lab.refusals(clients, against, scenarios)
    runs = lab.planned(clients, against, refused, scenarios)
    lab.require_budget(runs, limit_s)
    record = replace(lab.record_in(home, seed), version=lab.VERSION, left_out=refused)
    console = Console(stderr=True, highlight=False)
    progress = Progress(console)
    lab.require_programs(runs, progress.log)
    for name, arm in clients.items():
        if "version" in arm:
            program = built(arm["client"], arm["version"], progress.log)
            refuse_nonconforming(name, {**arm, "command": program.command}, against, progress.log)
        elif "command" in arm:
            refuse_nonconforming(name, arm, against, progress.log)
    with warm_cluster(lab.NAME, home, spark, progress, console, reports=True) as run_plan:

        def perform(planned: Planned) -> Path:
            plan = find(planned.plan)
            job = prepare(plan, planned.settings, seed, progress.log, kafka=planned.kafka, allow_exec=True)
            return run_plan(job)[0]

        record = store.run_missing(record, home, runs, perform, progress.log, limit_s)
    card = cards.read_card(record, home, runs)
    progress.log(f"report card: {cards.write(card, home)}")
    return show(card)
