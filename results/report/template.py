"""Fills the templates that stand beside this file.

Rules: every value is escaped; a name that is missing is an error; the one script is ours, and a page allows it by its
hash and nothing else.
"""

import base64
import hashlib

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aftershock.results import shown


def filled(template: str, **told: object) -> str:
    """``template`` with what it is told, the style sheet, the script, and the ways to show figures of ``shown``."""
    loader = PackageLoader("aftershock.results.report", ".")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    css, script = (loader.get_source(environment, name)[0] for name in ("page.css", "copy.js"))
    environment.globals |= {
        "css": Markup(css),  # noqa: S704 - our own file
        "script": Markup(script),  # noqa: S704 - our own file
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "observed": shown.observed,
        "threshold": shown.threshold,
        "milliseconds": shown.milliseconds,
        "megabytes": shown.megabytes,
        "seconds": shown.seconds,
        "tally": shown.tally,
    }
    return environment.get_template(template).render(told)
