"""Fills the templates that stand beside this file.

Rules: every value is escaped; a name that is missing is an error.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.results import shown


def filled(template: str, **told: object) -> str:
    """``template`` with what it is told, the style sheet, and the ways to show figures of ``shown``."""
    loader = PackageLoader("aftershock.results.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals |= {
        "css": Markup(loader.get_source(environment, "page.css")[0]),  # noqa: S704 - our own file
        "observed": shown.observed,
        "threshold": shown.threshold,
        "milliseconds": shown.milliseconds,
        "seconds": shown.seconds,
        "tally": shown.tally,
    }
    return environment.get_template(template).render(told)
