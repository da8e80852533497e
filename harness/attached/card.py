"""What a run on an attached cluster leaves for whoever must heal after its death: no secrets, only their variables.

Written before anything is touched, and again with every topic that the run creates.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aftershock.errors import EvidenceError
from aftershock.faults.attach import Attach
from aftershock.faults.timeline import Timeline
from aftershock.harness.assignments import group_names, worker_names
from aftershock.results.files import read_object, write_whole

CARD = "attached.json"
_FILES = ("ca", "certificate", "key")


@dataclass(frozen=True)
class Card:
    """``attach`` with absolute paths; ``topics``: the plan's; ``clients``: our workers, which are their client ids.

    ``groups``: theirs. ``created``: ids of the topics that are ours, by name. ``over``: the run left in good order.
    """

    run_id: str
    attach: Attach
    topics: tuple[str, ...]
    clients: tuple[str, ...]
    groups: tuple[str, ...] = ()
    created: Mapping[str, str] = field(default_factory=dict)
    over: bool = False

    @classmethod
    def of(cls, run_id: str, attach: Attach, timeline: Timeline) -> "Card":
        """Of a run that begins: whoever heals it may stand in another folder."""
        files = {name: str(Path(path).resolve()) for name in _FILES if (path := getattr(attach.security, name))}
        security = attach.security.model_copy(update=files)
        topics = tuple(topic["name"] for topic in timeline.topics)
        clients, groups = tuple(worker_names(timeline)), tuple(group_names(timeline))
        return cls(run_id, attach.model_copy(update={"security": security}), topics, clients, groups)

    def having(self, topic: str, topic_id: str) -> "Card":
        """With one more topic of ours, or a new one of its name."""
        return replace(self, created={**self.created, topic: topic_id})

    def closed(self) -> "Card":
        """With nothing of ours left."""
        return replace(self, created={}, over=True)

    def write(self, home: Path) -> None:
        """Into the run directory, whole or not at all."""
        document: dict[str, Any] = asdict(self) | {"attach": self.attach.model_dump(mode="json", exclude_defaults=True)}
        write_whole(home / CARD, json.dumps(document, indent=1) + "\n")


def is_attached(home: Path) -> bool:
    """Whether the run of this directory stands on an attached cluster."""
    return (home / CARD).is_file()


def read_card(home: Path) -> Card:
    """EvidenceError where it can't be read."""
    found = read_object(home / CARD)
    try:
        attach = Attach.model_validate(found["attach"])
        topics, clients, groups = (tuple(map(str, found[name])) for name in ("topics", "clients", "groups"))
        return Card(str(found["run_id"]), attach, topics, clients, groups, dict(found["created"]), bool(found["over"]))
    except (KeyError, TypeError, ValidationError) as error:
        raise EvidenceError(f"{home / CARD}: this is no card of an attached cluster; restore the file") from error
