"""Manual commands for a fault that could not be healed: one for each part still broken."""

from aftershock.faults.runtime.record import Undo, all_of
from aftershock.harness.safety.heal import manual_commands

CONTAINERS = {1: "aftershock-x-k1", 2: "aftershock-x-k2"}
API = "http://127.0.0.1:8474"


def test_each_thing_has_its_command() -> None:
    """Docker's for nodes, Toxiproxy's for proxies; all parts of a fault in order, without repetition."""
    undo = all_of(
        [
            Undo("start", {"broker": 1}),
            Undo("resume", {"broker": 2}),
            Undo("remove_toxics", {"toxics": [["client_a-k1", "slow:client_a-k1:upstream"]]}),
            Undo("enable_proxies", {"proxies": ["client_a-k2"]}),
            Undo("redirect_proxies", {"upstreams": [["client_a-k1", "b1:9101"]]}),
            Undo("start", {"broker": 1}),
        ]
    )
    assert manual_commands(undo, CONTAINERS, API, "x") == [
        "docker start aftershock-x-k1",
        "docker unpause aftershock-x-k2",
        f"curl -X DELETE {API}/proxies/client_a-k1/toxics/slow:client_a-k1:upstream",
        f"curl -d '{{\"enabled\": true}}' {API}/proxies/client_a-k2",
        f'curl -d \'{{"upstream": "b1:9101"}}\' {API}/proxies/client_a-k1',
    ]


def test_what_only_kafka_can_put_back() -> None:
    """For other undos, and without Toxiproxy, the command is `aftershock heal`."""
    assert manual_commands(Undo("restore_settings", {}), {}, None, "x") == ["aftershock heal --run x"]
    assert manual_commands(Undo("start", {"broker": 1}), {}, None, "x") == ["aftershock heal --run x"]
    assert manual_commands(Undo("nothing"), CONTAINERS, API, "x") == []
