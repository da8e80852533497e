"""Settings of Kafka nodes and topics that a plan may change, by Kafka's own definitions.

A plan may come from a stranger, and each node's settings reach its container as environment variables ``KAFKA_*``, some
of which the start scripts of Kafka's image add to the command line of the JVM (``KAFKA_OPTS``). Therefore a plan may
use only names that Kafka defines: ``broker_settings.json`` lists them for Kafka 4.1 to 4.3, those of them that Kafka
3.9 lacks (``new_in_4``), and type and range of their values in Kafka 4.3 (``values``). It is written by
``python -m aftershock.tests.contract.test_broker_settings`` from Kafka's jars. Of these, a plan may not use

* settings that the harness sets itself, such as ``listeners``;
* settings that read files, run commands or connect elsewhere (``ssl.*``, ``sasl.*``, class paths, providers);
* classes other than Kafka's and Aftershock's, in settings that load classes.

``listener.name.<listener>.<setting>`` follows the rule for its setting. A value of another type than Kafka's, or out of
its range, would only be noticed by a node that does not start.
"""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal

from aftershock.faults.sections.document import did_you_mean

Owner = Literal["node", "topic"]

_LISTENER = re.compile(r"listener\.name\.[a-z0-9_]+\.(?P<setting>.+)")
_HARNESS_TEXT = """
    advertised.listeners broker.rack controller.listener.names controller.quorum.bootstrap.servers
    controller.quorum.voters early.start.listeners inter.broker.listener.name listener.security.protocol.map listeners
    log.dir log.dirs metadata.log.dir node.id process.roles security.inter.broker.protocol
"""
_HARNESS = frozenset(_HARNESS_TEXT.split())
_DANGEROUS = re.compile(r"(ssl|sasl|delegation\.token|config\.providers|security\.providers)\b.*|.*\.class\.path")
_CLASSES = re.compile(r".*(\.class|\.class\.name|\.classes|\.reporters|\.assignors|\.callback\.class)")
_PACKAGES = ("org.apache.kafka.", "aftershock.")
_UNITS = {".ms": " of milliseconds", ".bytes": " of bytes", ".seconds": " of seconds", ".minutes": " of minutes"}


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return document


@cache
def known_settings() -> Mapping[Owner, frozenset[str]]:
    return {"node": frozenset(_document()["node"]), "topic": frozenset(_document()["topic"])}


@cache
def lacking_settings() -> Mapping[Owner, frozenset[str]]:
    """Return the settings that Kafka 3.9 and earlier lack."""
    lacking = _document()["new_in_4"]
    return {"node": frozenset(lacking["node"]), "topic": frozenset(lacking["topic"])}


def known_values() -> Mapping[Owner, Mapping[str, str]]:
    """Return Kafka's type of each setting, with its range or its words: ``INT [1,...]``, ``LIST [compact, delete]``."""
    values: Mapping[Owner, Mapping[str, str]] = _document()["values"]
    return values


_INTEGER_BITS = {"SHORT": 16, "INT": 32, "LONG": 64}


def value_refusal(owner: Owner, name: str, value: str, *, ranges: bool = True) -> str | None:
    """Return why Kafka refuses the value of a setting, with the remedy; None if Kafka accepts it, or is unknown.

    Without ``ranges``, only the type is compared: another version of Kafka may permit other values.
    """
    within = _LISTENER.fullmatch(name)
    kind, _, permitted = known_values()[owner].get(within["setting"] if within else name, "").partition(" ")
    text = value.strip()
    if not text and owner == "node":
        return None  # stands for Kafka's default
    number: Decimal | None = None
    if kind in _INTEGER_BITS:
        limit = 2 ** (_INTEGER_BITS[kind] - 1)
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or not -limit <= int(text) < limit:
            unit = next((words for end, words in _UNITS.items() if name.endswith(end)), "")
            return f"`{name}` must be an integer{unit}, got `{value[:40]}`: write digits only"
        number = Decimal(text)
    elif kind == "DOUBLE":
        if not re.fullmatch(r"[+-]?(\d{1,19}(\.\d{0,19})?|\.\d{1,19})([eE][+-]?\d{1,2})?", text):
            return f"`{name}` must be a number, got `{value[:40]}`: write a number, such as 0.5"
        number = Decimal(text)
    elif kind == "BOOLEAN" and text.lower() not in ("true", "false"):
        return f"`{name}` must be true or false, got `{value[:40]}`"
    return _range_refusal(name, kind, permitted, text, number) if permitted and ranges else None


def _range_refusal(name: str, kind: str, permitted: str, text: str, number: Decimal | None) -> str | None:
    """Return why a value of the right type is not ``permitted``: ``[1,...]``, ``[1,...,17]``, ``[compact, delete]``."""
    bounds = permitted.strip("[]").split(",...")
    if number is not None and len(bounds) > 1:
        least, most = Decimal(bounds[0]), bounds[1].lstrip(",")
        if number < least:
            return f"`{name}` must be at least {least}, got `{text}`"
        if most and number > Decimal(most):
            return f"`{name}` must be at most {most}, got `{text}`"
    elif number is None:
        words = permitted.strip("[]").split(", ")
        given = [word.strip() for word in text.split(",")] if kind == "LIST" else [text]
        if unknown := next((word for word in given if word and word not in words), None):
            return f"`{name}` does not take `{unknown[:40]}`; {did_you_mean(unknown, words)}"
    return None


def setting_refusal(owner: Owner, name: str, value: str, *, foreign: bool = False) -> str | None:
    """Return why a plan may not give a setting this value, with the remedy; None if it may.

    ``foreign`` is True for an attached cluster, whose brokers may have settings that Apache Kafka does not have.
    """
    within = _LISTENER.fullmatch(name)
    setting = within["setting"] if within and owner == "node" else name
    if setting in _HARNESS and owner == "node":
        return f"the setting `{name}` is set by the harness: remove it"
    if _DANGEROUS.fullmatch(setting):
        why = "may read files, run commands or connect elsewhere"
        return f"the setting `{name}` is refused in a plan, because it {why}: remove it"
    if setting not in known_settings()[owner] and not foreign:
        return f"Kafka has no {owner} setting `{name}`; {did_you_mean(setting, known_settings()[owner], listed=False)}"
    if any(ord(character) < ord(" ") for character in value) or value.endswith("\\"):
        return f"the value of `{name}` must be one line without a backslash at its end: correct it"
    if _CLASSES.fullmatch(setting):
        for word in value.replace(",", " ").split():
            if "." in word and not word.startswith(_PACKAGES):
                return f"`{name}` loads the class `{word}`, and a plan may only name classes of Kafka: remove it"
    return None
