"""The adapter against a real Toxiproxy: settings are read back, and refusals of the server are clear errors."""

import pytest

from aftershock.errors import FaultError
from aftershock.faults.targets.values import Toxic
from aftershock.harness.cluster.cluster import Cluster
from aftershock.harness.cluster.proxies import Toxiproxy

pytestmark = pytest.mark.engine
SLOW = Toxic("slow", "latency", "upstream", {"latency": 5, "jitter": 0})


def test_a_toxic_is_added_changed_and_removed(cluster: Cluster) -> None:
    """Each step is read back; removing a missing toxic is no error, so that heals can be repeated."""
    api = cluster.toxiproxy
    api.add_toxic("client_a-k1", SLOW)
    assert (SLOW,) == api.toxics()["client_a-k1"]
    slower = Toxic("slow", "latency", "upstream", {"latency": 9, "jitter": 0})
    api.update_toxic("client_a-k1", slower)
    assert (slower,) == api.toxics()["client_a-k1"]
    for _ in range(2):
        api.remove_toxic("client_a-k1", "slow")
    assert () == api.toxics()["client_a-k1"]


def test_refusals_are_clear_errors(cluster: Cluster) -> None:
    """An unknown proxy, a duplicate toxic, an update of a missing toxic, an unreachable server."""
    api = cluster.toxiproxy
    with pytest.raises(FaultError, match="client_a-k9"):
        api.add_toxic("client_a-k9", SLOW)
    with pytest.raises(FaultError, match="slow"):
        api.update_toxic("client_b-k1", SLOW)
    api.add_toxic("client_b-k1", SLOW)
    with pytest.raises(FaultError, match="refused"):
        api.add_toxic("client_b-k1", SLOW)
    api.remove_toxic("client_b-k1", "slow")
    with pytest.raises(FaultError, match=r"127\.0\.0\.1:9"):
        Toxiproxy("127.0.0.1", 9).toxics()


def test_a_proxy_is_disabled_and_enabled(cluster: Cluster) -> None:
    """Both can be repeated, both are read back, and its toxics persist."""
    api = cluster.toxiproxy
    api.add_toxic("client_c-k1", SLOW)
    for enabled, shut in ((False, {"client_c-k1"}), (True, set[str]())):
        for _ in range(2):
            api.enable("client_c-k1", enabled=enabled)
            assert shut == api.disabled()
    assert (SLOW,) == api.toxics()["client_c-k1"]
    api.remove_toxic("client_c-k1", "slow")
    with pytest.raises(FaultError, match="client_a-k9"):
        api.enable("client_a-k9", enabled=False)


def test_two_servers_in_one_process_are_independent(cluster: Cluster) -> None:
    """The library has one address for the whole process; the adapter must not."""
    other = Toxiproxy("127.0.0.1", 9)
    assert "client_a-k1" in cluster.toxiproxy.toxics()
    with pytest.raises(FaultError):
        other.version()
    assert "2.12.0" == cluster.toxiproxy.version()
