"""Commands about clusters on Kubernetes."""

import re
from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError, PlanError
from aftershock.harness.cli.options import OutOption

kubernetes = typer.Typer(help="Prepare a Kubernetes cluster for runs.", no_args_is_help=True)


@kubernetes.command()
def rbac(
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Namespace of the runs (default: runs make namespaces of their own)."),
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="The role to attach to brokers in pods of the namespace.")
    ] = False,
    agent: Annotated[bool, typer.Option("--agent", help="With --attach: for plans with `agent: true`, too.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="For plans with `nodes: true` (drain), too.")] = False,
    user: Annotated[str, typer.Option(metavar="NAME", help="User to whom the role is bound.")] = "USER",
) -> int:
    """Print the least role that a run needs, and its binding, for `kubectl apply -f -`."""
    from aftershock.faults.sections.document import dump_yaml
    from aftershock.harness.attach.broker_pods import AGENT_NEEDS, NEEDS
    from aftershock.harness.cluster.kubernetes import cordons
    from aftershock.harness.lifecycle.launch_kubernetes import role

    if (attach and namespace is None) or (agent and not attach):
        raise AftershockError("--attach needs --namespace, that of the brokers' pods, and --agent needs --attach")
    documents = role(namespace, (*NEEDS, *(AGENT_NEEDS if agent else ())) if attach else None)
    documents += role(None, cordons.NEEDS, "aftershock-nodes") if nodes else []
    for binding in documents[1::2]:
        binding["subjects"][0]["name"] = user
    print("---\n".join(dump_yaml(document) for document in documents), end="")
    return 0


NamespaceOption = Annotated[str, typer.Option(metavar="NAME", help="Namespace of the runs.")]


@kubernetes.command()
def cronjob(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or the name of a shipped plan.")],
    namespace: NamespaceOption,
    schedule: Annotated[str, typer.Option(metavar="CRON", help="When, in the words of cron.")] = "0 2 * * *",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the objects (default: that of the plan).")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Image of the runner (default: `aftershock images --runner`).")
    ] = None,
) -> int:
    """Print a CronJob that runs a plan on this Kubernetes cluster, with its role, for `kubectl apply -f -`."""
    from aftershock.faults.plan.check import load_plan
    from aftershock.faults.plans import find
    from aftershock.faults.sections.document import dump_yaml
    from aftershock.harness.cluster.images import build
    from aftershock.harness.cluster.kubernetes.cron import cron_job, hindrances
    from aftershock.harness.lifecycle.launch_kubernetes import role
    from aftershock.harness.run.job import on_kubernetes

    file = find(plan)
    name = name or file.stem
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", name):
        raise AftershockError(f"`{name}` is no name for a CronJob (small letters, digits and -): give --name NAME")
    checked = load_plan(file, on_kubernetes(file, [f"cluster.kubernetes.namespace={namespace}"]))
    if problems := list(hindrances(checked)):
        raise PlanError(problems)
    documents = cron_job(
        *(name, namespace, schedule, file.read_text(encoding="utf-8")),
        image or build.runner().name,
        role(namespace),
    )
    print("---\n".join(dump_yaml(document) for document in documents), end="")
    return 0


@kubernetes.command()
def result(
    namespace: NamespaceOption,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the CronJob.")],
    out: OutOption = Path("runs"),
) -> int:
    """Keep the result of the newest run in the config map NAME-result: verdict, summary, and gauges for Prometheus."""
    from aftershock.harness.cluster.kubernetes.api import Api
    from aftershock.harness.cluster.kubernetes.cron import keep_result
    from aftershock.harness.run.runs import find_run, runs_in
    from aftershock.results.evidence.files import read_object
    from aftershock.results.evidence.stored import verdict_of
    from aftershock.results.report.prometheus import gauges_text
    from aftershock.results.report.verdict_formats import summary

    runs = runs_in(out)
    if not runs:
        print(keep_result(Api(), namespace, name, {"status": "the run did not start; see the log of its pod"}))
        return 0
    home = find_run(runs[0].run_id, out)
    run = read_object(home / "run.json")
    texts = {"run": home.name, "status": str(run.get("why") or run.get("status"))}
    if (home / "verdict.json").is_file():
        verdict = verdict_of(home)
        texts |= {"status": verdict.status.value, "summary.txt": summary(verdict)}
        texts |= {"aftershock.prom": gauges_text(verdict, run)}
        texts |= {"verdict.json": (home / "verdict.json").read_text(encoding="utf-8")}
    print(f"{keep_result(Api(), namespace, name, texts)}: {home.name}, {texts['status']}")
    return 0
