"""Arguments, options and exit codes that several commands share, declared once."""

from pathlib import Path
from typing import Annotated

import typer

from aftershock.errors import AftershockError
from aftershock.faults.sections.units import parse_duration_ms

ERROR = 3
INTERRUPTED = 130

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="Path of a plan, or the name of a shipped plan (demo).")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run id under --out, or a pack.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="ID", help="Run id of the kept cluster, needed if several are kept.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of every random choice in the plan.")]
RunsSeedOption = Annotated[
    int, typer.Option(metavar="N", help="Seed of the runs; runs with another seed are not reused.")
]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time budget, for example 20m; what does not fit can run later.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the plan, for example timing.steady=5s or topics.0.partitions=6.",
    ),
]
OutOption = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the runs.")]
KafkaOption = Annotated[str | None, typer.Option(metavar="VERSION", help="Kafka version, for example 4.1.2.")]
SparkOption = Annotated[
    str | None, typer.Option(metavar="MASTER", help="Spark master, or sc://host:port (default: Sail on this host).")
]
EvidenceOption = Annotated[
    str | None, typer.Option(metavar="URI", help="URI of evidence outside --out: hdfs://, s3a:// or file:/.")
]
AllowExecOption = Annotated[
    bool, typer.Option("--allow-exec", help="Allow the plan to start programs of your own (client: exec).")
]
AllowAttachOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-attach", metavar="HOST:PORT", help="Allow connections to this address of your cluster; repeatable."
    ),
]
AllowContainerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-container",
        metavar="NAME",
        help="Allow faults to kill, stop, pause and limit this container of your cluster; repeatable.",
    ),
]
AllowNamespaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-namespace",
        metavar="NAME",
        help="Allow a plan to create and stop pods in this namespace of a Kubernetes cluster; repeatable.",
    ),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="Allow the plan to read this environment variable or private key; repeatable.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict", help="INCONCLUSIVE if a client's obligation to make progress was judged for too little of the time."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def budget_s(text: str) -> float:
    """Convert a ``--budget`` such as ``30m`` to seconds; raise AftershockError if it is not a duration."""
    try:
        return parse_duration_ms(text) / 1000
    except ValueError as error:
        raise AftershockError(f"--budget {error}") from error
