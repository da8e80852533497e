"""Settings of Kafka nodes and topics that a plan may change, by Kafka's own definitions.

A plan may come from a stranger, and each node's settings reach its container as environment variables ``KAFKA_*``, some
of which the start scripts of Kafka's image add to the command line of the JVM (``KAFKA_OPTS``). Therefore a plan may
use only names that Kafka defines: ``broker_settings.json`` lists them for Kafka 4.1 to 4.3, and those of them that
Kafka 3.9 lacks (``new_in_4``). It is written by
``python -m aftershock.tests.contract.test_broker_settings`` from Kafka's jars. Of these, a plan may not use

* settings that the harness sets itself, such as ``listeners``;
* settings that read files, run commands or connect elsewhere (``ssl.*``, ``sasl.*``, class paths, providers);
* classes other than Kafka's and Aftershock's, in settings that load classes.

``listener.name.<listener>.<setting>`` follows the rule for its setting.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

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


@cache
def known_settings() -> Mapping[Owner, frozenset[str]]:
    document = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {"node": frozenset(document["node"]), "topic": frozenset(document["topic"])}


@cache
def lacking_settings() -> Mapping[Owner, frozenset[str]]:
    """Return the settings that Kafka 3.9 and earlier lack."""
    lacking = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["new_in_4"]
    return {"node": frozenset(lacking["node"]), "topic": frozenset(lacking["topic"])}


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
