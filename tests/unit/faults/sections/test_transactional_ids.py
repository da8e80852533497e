"""Transactional ids that a plan tells: of producers, of services and programs, and of committers."""

from __future__ import annotations

from typing import Any

import pytest

from aftershock.faults.sections.transactional_ids import has_transactional_id, transactional_ids
from aftershock.faults.sections.workloads import Workload

PRODUCE = {"topic": "orders", "rate": "60/s", "transaction": {"records": 10}}
PIPE = {"from": "orders", "to": "billed", "members": 2, "group": "biller", "transactional": True}
SERVICE = {"client": "service", "command": ["./billing"]}


def workloads(**sections: Any) -> dict[int, Workload]:
    return {0: Workload.model_validate({"name": "w", **sections})}


def ids(**sections: Any) -> list[str]:
    return [known.text for known in transactional_ids(workloads(**sections))]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"produce": PRODUCE}, ["w-baseline-produce"]),
        ({"produce": PRODUCE | {"producers": 2}}, ["w-baseline-produce-1", "w-baseline-produce-2"]),
        ({"produce": {"topic": "orders", "rate": "60/s"}}, []),
        ({"pipe": PIPE, "arms": {"a": {"client": "confluent"}}}, ["w-a-pipe-1", "w-a-pipe-2"]),
        ({"pipe": PIPE | {"transactional": False}, "arms": {"a": SERVICE}}, []),
        ({"pipe": PIPE, "arms": {"a": SERVICE}}, []),
        (
            {"pipe": PIPE, "arms": {"a": SERVICE | {"env": {"TRANSACTIONAL_ID": "bill-{member}"}}}},
            ["bill-w-a-pipe-1", "bill-w-a-pipe-2"],
        ),
        ({"pipe": PIPE, "arms": {"a": SERVICE | {"file": "acks=all\ntransactional.id = x-{member}\n"}}}, None),
        ({"pipe": PIPE, "arms": {"a": SERVICE | {"command": ["./b", "--transactional-id", "x-{member}"]}}}, None),
        ({"pipe": PIPE, "arms": {"a": SERVICE | {"command": ["./b", "--transactional-id=x-{member}"]}}}, None),
        ({"pipe": PIPE, "arms": {"a": SERVICE | {"file": '{"transactional.id": "x-{member}"}'}}}, None),
    ],
)
def test_ids_of_producers_and_services(sections: dict[str, Any], expected: list[str] | None) -> None:
    assert (["x-w-a-pipe-1", "x-w-a-pipe-2"] if expected is None else expected) == ids(**sections)


def test_a_service_whose_ids_nobody_knows_may_have_any() -> None:
    unknown = workloads(pipe=PIPE, arms={"a": SERVICE})
    assert has_transactional_id(unknown, "acme-7")
    told = workloads(pipe=PIPE, arms={"a": SERVICE | {"env": {"TX_TRANSACTIONAL_ID": "{member}"}}})
    assert not has_transactional_id(told, "acme-7")
    assert has_transactional_id(told, "w-a-pipe-2")


@pytest.mark.parametrize(
    ("text", "known"),
    [("w-a-commit-w-a-2-0", True), ("w-a-commit-w-a-3-0", False), ("w-a-commit-w-a-2", False), ("w-a-commit", False)],
)
def test_a_committer_has_an_id_for_each_group(text: str, known: bool) -> None:
    arms = {"a": {"client": "reference", "settings": {"transactional": True}}}
    assert known == has_transactional_id(workloads(commit={"groups": 3, "rate": "5/s"}, arms=arms), text)
    assert not has_transactional_id(
        workloads(commit={"groups": 3, "rate": "5/s"}, arms={"a": {"client": "reference"}}), text
    )
