"""Lookup of the bundled plans by name."""

from pathlib import Path

from aftershock.errors import PlanError
from aftershock.faults.sections.document import did_you_mean

_HOME = Path(__file__).parent


def names() -> list[str]:
    """Return the sorted names of the bundled plans, such as ``demo`` and ``kips/951-move``."""
    return sorted(path.relative_to(_HOME).with_suffix("").as_posix() for path in _HOME.rglob("*.yaml"))


def find(plan: str) -> Path:
    """Resolve the command line's PLAN argument as a path or the name of a bundled plan; raise PlanError for neither."""
    if plan in names() and not Path(plan).is_file():
        return _HOME / f"{plan}.yaml"
    path = Path(plan)
    if path.is_file():
        return path
    shipped = [name for name in names() if "/" not in name]
    hint = did_you_mean(plan, names(), listed=False)
    if not hint.startswith("did"):
        hint = f"shipped plans: {', '.join(shipped)}"
    raise PlanError([f"{plan}: there is no such file, and no shipped plan of that name; {hint}"])
