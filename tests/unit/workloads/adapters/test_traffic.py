"""Traffic by broker, from librdkafka's statistics."""

import json

from aftershock.workloads.adapters.confluent_settings import Traffic


def test_connections_to_one_broker_add_up_and_nameless_ones_do_not_count() -> None:
    """The coordinator's connection goes to the same broker; a bootstrap address is no broker yet."""
    traffic = Traffic()
    brokers = {
        "10.0.0.1:1/1": {"nodeid": 1, "txbytes": 100, "rxbytes": 10},
        "GroupCoordinator": {"nodeid": 1, "txbytes": 5, "rxbytes": 1},
        "10.0.0.1:1/bootstrap": {"nodeid": -1, "txbytes": 999, "rxbytes": 999},
        "10.0.0.2:1/2": {"nodeid": 2, "txbytes": 0, "rxbytes": 0},
    }
    traffic.on_statistics(json.dumps({"brokers": brokers}))
    assert {1: (105, 11), 2: (0, 0)} == traffic.by_broker
