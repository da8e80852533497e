"""The programs that a plan would have us start: the user's own need permission."""

from aftershock.errors import PlanError
from aftershock.faults.check import Checked


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
