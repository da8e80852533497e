from __future__ import annotations

import ctypes
import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from aftershock.errors import WorkloadError
from aftershock.tests.mock_cluster import library
from aftershock.workloads.adapters.confluent_settings import (
    CONSUMER_ONLY,
    PRODUCER_ONLY,
    Traffic,
    consumer_config,
    producer_config,
)

if TYPE_CHECKING:
    from pathlib import Path

    from aftershock.tests.unit.workloads.conftest import Bench


def owners_by_name(listing: Path) -> dict[str, set[str]]:
    """Return librdkafka's own list of properties: name -> {"C", "P", "*"}."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(str(listing).encode(), b"w"))
    library().rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    owners = defaultdict(set)
    for line in listing.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1] in {"C", "P", "*"}:
            owners[cells[0]].add(cells[1])
    return owners


def test_tables_match_librdkafkas_property_list(tmp_path: Path) -> None:
    """The library's list says which client a setting belongs to; callbacks can't be set from a plan."""
    owners = owners_by_name(tmp_path / "properties")
    callbacks = {name for name in owners if name.endswith("_cb")} | {"msg_order_cmp"}
    producers = {name for name, whose in owners.items() if whose == {"P"}} - callbacks
    consumers = {name for name, whose in owners.items() if whose == {"C"}} - callbacks
    assert producers == PRODUCER_ONLY
    assert consumers == CONSUMER_ONLY


def test_each_client_takes_its_own_settings(bench: Bench) -> None:
    """An arm's settings are for both its clients; librdkafka would warn about a setting of the other kind."""
    settings = {"compression.type": "lz4", "fetch.min.bytes": 1, "socket.timeout.ms": 3000}
    producer = producer_config(bench.produce(settings=settings))
    consumer = consumer_config(bench.consume(settings=settings))
    assert not CONSUMER_ONLY & producer.keys()
    assert not PRODUCER_ONLY & consumer.keys()
    assert (producer["compression.type"], consumer["fetch.min.bytes"]) == ("lz4", 1)
    assert producer["socket.timeout.ms"] == consumer["socket.timeout.ms"] == 3000


def test_plan_keys_become_librdkafka_properties(bench: Bench) -> None:
    """Acks, idempotence, linger, deadline, rack, group and from."""
    produce = bench.produce(acks="1", idempotence=False, linger_ms=0, deadline_ms=900, client_rack="b")
    expected = {"acks": "1", "enable.idempotence": False, "linger.ms": 0, "delivery.timeout.ms": 900}
    assert producer_config(produce).items() >= (expected | {"client.rack": "b", "client.id": "p0"}).items()
    grouped = consumer_config(bench.consume(group="g-baseline", from_="latest"))
    expected = {"group.id": "g-baseline", "enable.auto.commit": True, "auto.offset.reset": "latest"}
    assert grouped.items() >= expected.items()
    assert "client.rack" not in grouped
    assert consumer_config(bench.consume())["enable.auto.commit"] is False


def test_an_arms_settings_override_aliases(bench: Bench) -> None:
    """librdkafka has aliases: with both names, the order would decide which counts."""
    config = producer_config(bench.produce(settings={"queue.buffering.max.ms": 77}))
    assert config["linger.ms"] == 77
    assert "queue.buffering.max.ms" not in config


@pytest.mark.parametrize("name", ["delivery.report.only.error", "metadata.broker.list", "group.id"])
def test_settings_that_the_recorder_needs_are_refused(bench: Bench, name: str) -> None:
    """The error names the arm, the setting and the remedy, whichever client the setting is for."""
    with pytest.raises(WorkloadError, match=r"arm baseline .* is not allowed: .*; remove it"):
        producer_config(bench.produce(settings={name: "x"}))
    with pytest.raises(WorkloadError, match="is not allowed"):
        consumer_config(bench.consume(settings={name: "x"}))


QUIET = {"disconnects": 0, "req_timeouts": 0}


def test_traffic_adds_up_by_broker() -> None:
    """The coordinator's connection is to the same broker; a bootstrap connection has no broker id and doesn't count."""
    traffic = Traffic(lambda: 0, lambda *_, **__: None)
    brokers = {
        "10.0.0.1:1/1": {"nodeid": 1, "txbytes": 100, "rxbytes": 10, **QUIET},
        "GroupCoordinator": {"nodeid": 1, "txbytes": 5, "rxbytes": 1, **QUIET},
        "10.0.0.1:1/bootstrap": {"nodeid": -1, "txbytes": 999, "rxbytes": 999, **QUIET},
        "10.0.0.2:1/2": {"nodeid": 2, "txbytes": 0, "rxbytes": 0, **QUIET},
    }
    traffic.on_statistics(json.dumps({"brokers": brokers}))
    assert {1: (105, 11), 2: (0, 0)} == traffic.by_broker


def test_connections_that_ended_and_requests_that_timed_out_are_events() -> None:
    """What librdkafka counted more than at the statistics before, by broker; those of bootstrap addresses have none."""
    told: list[tuple[str, dict[str, int]]] = []
    times_us = iter((5, 1_000, 2_000, 3_000))
    traffic = Traffic(lambda: next(times_us), lambda event, **details: told.append((event, details)))

    def read(*counts: tuple[int, int, int]) -> None:
        traffic.on_statistics(
            json.dumps(
                {
                    "brokers": {
                        f"{at}": {
                            "nodeid": node,
                            "txbytes": 0,
                            "rxbytes": 0,
                            "disconnects": ended,
                            "req_timeouts": late,
                        }
                        for at, (node, ended, late) in enumerate(counts)
                    }
                }
            )
        )

    read((1, 0, 0), (2, 0, 0), (-1, 3, 3))
    assert told == []
    read((1, 1, 0), (1, 1, 2), (2, 0, 0), (-1, 4, 3))
    assert told == [
        ("node_disconnected", {"t_us": 2_000, "node_id": 1, "count": 2, "since_us": 1_000}),
        ("request_timed_out", {"t_us": 2_000, "node_id": 1, "count": 2, "since_us": 1_000}),
    ]
    read((1, 1, 0), (1, 1, 2), (2, 1, 0), (-1, 4, 3))
    assert told[2:] == [("node_disconnected", {"t_us": 3_000, "node_id": 2, "count": 1, "since_us": 2_000})]
