"""How figures of a trial are shown, the same on the terminal, the page and in the table."""

from aftershock.results.trials.statement import Estimate, Statement

NO_BOUND = "-"
_P_LEAST = 0.0001
_LONG = 1000


def figure(ours: Estimate) -> str:
    """``0.21 times, 0.17 .. 0.26 (95 %), n = 40, p = 0.0005``."""
    if ours.value is None:
        return f"no figure, n = {ours.n}"
    unit = f" {ours.unit}" if ours.unit else ""
    said = [f"{_number(ours.value)}{unit}"]
    if ours.interval:
        said.append(f"{' .. '.join(map(_number, ours.interval))} ({100 * ours.confidence:g} %)")
    said.append(f"n = {ours.n}")
    if ours.p is not None:
        said.append(f"p = {ours.p:.2g}" if ours.p >= _P_LEAST else f"p < {_P_LEAST:g}")
    return ", ".join(said)


def _number(value: float) -> str:
    """Three digits, or all before the point: ``0.0118``, ``28,800``."""
    return f"{value:.3g}" if abs(value) < _LONG else f"{value:,.0f}"


def word(statement: Statement) -> str:
    """Its word; what has no bound has none."""
    return statement.word if statement.bound else NO_BOUND
