"""Figures as the language writes them: exact, and in the shortest of its units."""

from decimal import Decimal

from aftershock.results.slo.words import UNITS_US, Aggregate


def number(value: Decimal) -> str:
    """Without an exponent, and without needless zeros: ``0.7``, ``100``."""
    return f"{value.normalize():f}"


def percent(share: Decimal) -> str:
    """``99.9%`` of 0.999."""
    return f"{number(share * 100)}%"


def time(us: int) -> str:
    """``250ms``, ``5s``, ``1500us``: the largest unit that leaves it whole."""
    unit = next(unit for unit, of_us in reversed(UNITS_US.items()) if us % of_us == 0)
    return f"{us // UNITS_US[unit]}{unit}"


def aggregate_name(aggregate: Aggregate) -> str:
    """``p95``, ``p99.9``, ``max`` or ``mean``."""
    return aggregate if isinstance(aggregate, str) else f"p{number(Decimal(repr(aggregate)) * 100)}"
