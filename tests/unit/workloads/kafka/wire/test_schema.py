"""What is read off kio's dataclasses: order, runs, tags, and the one field that breaks the rule."""

from kio.schema.fetch.v16.request import FetchRequest
from kio.schema.produce.v11.response import PartitionProduceResponse
from kio.schema.request_header.v2.header import RequestHeader

from aftershock.workloads.kafka.wire.schema import plain_fields, runs, tagged_fields


def test_neighbours_of_fixed_size_are_one_run() -> None:
    """A produced partition: thirty bytes that are always there are one piece, array and string one each."""
    assert [
        ("index", "error_code", "base_offset", "log_append_time", "log_start_offset"),
        ("record_errors",),
        ("error_message",),
    ] == [tuple(field.name for field in run) for run in runs(PartitionProduceResponse)]


def test_tagged_fields_come_by_rising_tag() -> None:
    """KIP-482 wants them in that order, whatever the order of the definition."""
    tags = [field.tag for field in tagged_fields(FetchRequest)]
    assert sorted(tags) == tags
    assert {"cluster_id", "replica_state"} == {field.name for field in tagged_fields(FetchRequest)}
    assert not {"cluster_id", "replica_state"} & {field.name for field in plain_fields(FetchRequest)}


def test_the_client_id_keeps_its_old_form() -> None:
    """A broker must be able to read a request's header whatever its version, so its string isn't compact."""
    assert [("client_id", False)] == [(f.name, f.compact) for f in plain_fields(RequestHeader) if not f.fixed]
    assert all(field.compact for field in plain_fields(FetchRequest))
