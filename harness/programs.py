"""The programs that a plan would have us start: the user's own need permission, Kafka's Java clients an image."""

from pathlib import Path

from aftershock.errors import PlanError
from aftershock.faults.check import Checked
from aftershock.faults.plan import Plan
from aftershock.harness import engine, labels
from aftershock.harness.java_client import java_command
from aftershock.harness.launching import Say


def refuse_programs(checked: Checked) -> None:
    """PlanError if some arm starts a program: a plan may come from a stranger, and the program can do what you can."""
    problems = [
        f"{checked.source}: the arm `{name}` of workload `{workload.name}` would start a program of its own "
        f"({' '.join(arm.command)}): say --allow-exec (in Python: allow_exec=True) if you trust it"
        for workload in checked.plan.workloads
        for name, arm in workload.arms.items()
        if arm.client == "exec"
    ]
    if problems:
        raise PlanError(problems)


def java_for(plan: Plan, kafka: str, run_id: str, home: Path, say: Say) -> tuple[str, ...]:
    """The command of the plan's Java clients, of version ``kafka``, their image found or built; empty when it has none.

    Raises:
        ImageError: the image can't be built.
        EngineError: there is no engine, or no docker command.
    """
    if not any(arm.client == "java" for workload in plan.workloads for arm in workload.arms.values()):
        return ()
    image = engine.java_client_image(engine.connect(), kafka, say)
    return java_command(image.name, labels.labels_of(run_id, home, keep=False))
