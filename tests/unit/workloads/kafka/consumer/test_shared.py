"""The consumer's settings: Kafka's names, defaults and contradictions."""

import pytest

from aftershock.errors import SettingError
from aftershock.workloads.kafka.client.settings import parse
from aftershock.workloads.kafka.consumer.shared import FETCH_BYTES_MAX, ConsumerSettings
from aftershock.workloads.kafka.wire.codec import FRAME_BYTES_MAX

HERE = {"bootstrap.servers": "h:1"}


def test_defaults_are_kafkas() -> None:
    """Kafka 4.3's."""
    told = parse(ConsumerSettings, HERE)
    assert ("latest", True, 5000, 500, 1, 50 * 2**20, 2**20, 500, True) == (
        told.auto_offset_reset,
        told.enable_auto_commit,
        told.auto_commit_interval_ms,
        told.fetch_max_wait_ms,
        told.fetch_min_bytes,
        told.fetch_max_bytes,
        told.max_partition_fetch_bytes,
        told.max_poll_records,
        told.check_crcs,
    )


def test_either_spelling_and_ablation_switches() -> None:
    """Dots or underscores; the two ablation switches are settings like any other."""
    told = parse(ConsumerSettings, HERE | {"group.id": "g", "fetch_session": False, "read.replica": "false"})
    assert ("g", False, False) == (told.group_id, told.fetch_session, told.read_replica)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"auto.offset.reset": "middle"}, "auto.offset.reset"),
        ({"fetch.max.wait": 3}, "fetch.max.wait.ms"),
        ({"request.timeout.ms": 500}, "fetch.max.wait.ms"),
        ({"max.poll.records": 0}, "max.poll.records"),
        ({"fetch.max.bytes": FETCH_BYTES_MAX + 1}, "fetch.max.bytes"),
    ],
)
def test_invalid_settings_are_refused_with_a_remedy(changes: dict[str, object], text: str) -> None:
    """An unknown name, a value out of range, and two settings that contradict one another."""
    with pytest.raises(SettingError, match=text):
        parse(ConsumerSettings, HERE | changes)


def test_the_largest_fetch_response_fits_a_frame() -> None:
    """With room for a batch of Kafka's default size beyond the limit: a larger response would be refused for ever."""
    assert FETCH_BYTES_MAX == parse(ConsumerSettings, HERE | {"fetch.max.bytes": FETCH_BYTES_MAX}).fetch_max_bytes
    assert 2**20 < FRAME_BYTES_MAX - FETCH_BYTES_MAX
