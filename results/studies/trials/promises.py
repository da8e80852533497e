"""Promises of the KIPs' texts, and the registered claims that test them (``promises.toml``)."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Promise:
    """Promise of a KIP's text, in our words; ``section`` is its place in the text.

    ``claims`` are the ids of the registered claims that test it, ``test`` is a contract test and ``finding`` its
    result, ``open`` says what has no trial yet, and ``untestable`` why no trial is possible here.
    """

    section: str
    promise: str
    claims: tuple[str, ...] = ()
    test: str = ""
    finding: str = ""
    open: str = ""
    untestable: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a promise without a test or a reason, or with a reason that contradicts its tests."""
        tested = bool(self.claims or self.test)
        if not (tested or self.open or self.untestable) or (self.untestable and (tested or self.open)):
            raise ValueError(
                f"{self.section}: {self.promise}: name claims, a test or what is open, or why none is possible"
            )
        if bool(self.test) != bool(self.finding):
            raise ValueError(f"{self.section}: {self.promise}: a test needs a finding, and a finding a test")


@cache
def read_promises() -> Mapping[int, Sequence[Promise]]:
    """Return the promises of each KIP whose text was read, in the order of the text."""
    kips = {name: entries for name, entries in _document().items() if name != "own"}
    return {_number(name): [_promise(entry) for entry in entries] for name, entries in kips.items()}


@cache
def read_own() -> Mapping[int, Mapping[str, str]]:
    """Return, by KIP, the registered claims that the text does not promise, with the reason for each."""
    return {_number(name): reasons for name, reasons in _document()["own"].items()}


def _promise(entry: Mapping[str, Any]) -> Promise:
    return Promise(**{**entry, "claims": tuple(entry.get("claims", ()))})


def _number(name: str) -> int:
    return int(name.removeprefix("kip"))


def _document() -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / "promises.toml").read_text(encoding="utf-8"))
