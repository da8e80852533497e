"""Headers and whole messages, invalid responses, and the choice of versions."""

import io
import re
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_response_from_request
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponseV0
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v3.response import HeartbeatResponse as HeartbeatResponseV3
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.serial import entity_writer
from kio.static.constants import EntityType

from aftershock.errors import ProtocolError, UnsupportedError
from aftershock.tests.unit.workloads.kafka.wire.kafka_python import message_classes
from aftershock.tests.unit.workloads.kafka.wire.messages import entities, message_types, name
from aftershock.workloads.kafka.wire import decoder
from aftershock.workloads.kafka.wire.codec import (
    Api,
    Versions,
    decode_response,
    encode_frame,
    known_versions,
    prepare,
    request_type,
    response_type,
)

REQUEST_TYPES = [kind for kind in message_types() if kind.__type__ is EntityType.request]
ANSWER = struct.pack(">ibihb", 5, 0, 0, 27, 0)  # to request 5, header v1; not throttled, REBALANCE_IN_PROGRESS


def written_by_kio(request: Any, correlation_id: int, client_id: str | None) -> bytes:
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", REQUEST_TYPES, ids=name)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), correlation_id=st.integers(0, 2**31 - 1), client_id=st.none() | st.text(max_size=20))
def test_a_request_is_header_and_body(
    kind: type[Any], data: st.DataObject, correlation_id: int, client_id: str | None
) -> None:
    """For every API and version the bytes of kio's header and body writers; a frame is that with its length."""
    request = data.draw(entities(kind))
    message = written_by_kio(request, correlation_id, client_id)
    assert struct.pack(">i", len(message)) + message == encode_frame(request, correlation_id, client_id)
    assert load_response_from_request(request) is response_type(kind)


def test_the_header_is_kafka_python_s() -> None:
    """The client id has its old form in a header that is otherwise flexible: an independent codec agrees."""
    request = message_classes()[12, True](
        group_id="g", generation_id=1, member_id="m", group_instance_id=None, version=4
    )
    request.with_header(correlation_id=77, client_id="me")
    ours = encode_frame(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 77, "me")
    assert request.encode(header=True, framed=True) == ours


def test_an_answer_is_decoded() -> None:
    """Header v1 and body, from bytes or a view; tags in the header are skipped."""
    assert ErrorCode.rebalance_in_progress == decode_response(HeartbeatResponse, memoryview(ANSWER), 5).error_code
    tagged = ANSWER[:4] + b"\x01\x05\x02ab" + ANSWER[5:]
    assert decode_response(HeartbeatResponse, ANSWER, 5) == decode_response(HeartbeatResponse, tagged, 5)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"", "ResponseHeader v1 can't be decoded: the message is too short"),
        (ANSWER[:4], "ResponseHeader v1 can't be decoded: the message is too short"),
        (ANSWER[:-1], "HeartbeatResponse v4 can't be decoded: the message is too short"),
        (struct.pack(">i", 6) + ANSWER[4:], "HeartbeatResponse has correlation id 6, expected 5"),
    ],
    ids=["empty", "no tags in its header", "short", "another's"],
)
def test_a_wrong_answer_is_refused(message: bytes, says: str) -> None:
    """Too short, or to another request: each is named with what it should have been."""
    with pytest.raises(ProtocolError, match=says):
        decode_response(HeartbeatResponse, message, 5)


def test_prepared_types_need_no_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Header and body of the response are read by functions that ``prepare`` has compiled."""
    decoder.struct_reader.cache_clear()
    prepare(HeartbeatRequest)
    monkeypatch.setattr(decoder, "Function", None)
    assert ErrorCode.rebalance_in_progress == decode_response(HeartbeatResponse, ANSWER, 5).error_code


def test_bytes_behind_a_response_are_ignored() -> None:
    """As in Kafka's clients."""
    assert decode_response(HeartbeatResponse, ANSWER, 5) == decode_response(HeartbeatResponse, ANSWER + b"more", 5)


@pytest.mark.parametrize("behind", [b"", b"\0\0\0\4\0\0\0\0\0\3", b"\2\0\x12\0\0\0\3\0"], ids=["none", "half", "v3"])
def test_a_refusal_that_is_not_in_version_0(behind: bytes) -> None:
    """Librdkafka's mock: error 35, and then what makes no sense in version 0. The error counts, the rest is nothing."""
    response = decode_response(ApiVersionsResponse, struct.pack(">ih", 5, 35) + behind, 5)
    assert isinstance(response, ApiVersionsResponseV0)
    assert (ErrorCode.unsupported_version, ()) == (response.error_code, response.api_keys)


def test_only_api_versions_answers_in_version_0() -> None:
    """KIP-511: error 35 from ApiVersions is version 0's, also to a request of version 4; no other API does that."""
    refused = struct.pack(">ihihhh", 5, 35, 1, 18, 0, 3)
    response = decode_response(ApiVersionsResponse, refused, 5)
    assert isinstance(response, ApiVersionsResponseV0)
    assert [(18, 0, 3)] == [(key.api_key, key.min_version, key.max_version) for key in response.api_keys]
    other = struct.pack(">iih", 5, 0, 35)
    assert ErrorCode.unsupported_version == decode_response(HeartbeatResponseV3, other, 5).error_code


def test_api_versions_has_a_plain_header() -> None:
    """The response header of ApiVersions has no tags in any version, so that anybody can read it."""
    accepted = struct.pack(">ih", 5, 0) + b"\x02" + struct.pack(">hhh", 18, 0, 4) + b"\x00" + bytes(4) + b"\x00"
    response = decode_response(ApiVersionsResponse, accepted, 5)
    assert [(18, 0, 4)] == [(key.api_key, key.min_version, key.max_version) for key in response.api_keys]
    assert response_type(ApiVersionsRequest) is type(response)


@pytest.mark.parametrize(
    ("offered", "cap", "picked"),
    [((3, 13), None, 13), ((3, 99), None, 13), ((3, 11), None, 11), ((3, 13), 9, 9), ((3, 8), 9, 8), ((0, 3), None, 3)],
)
def test_the_highest_common_version_is_picked(offered: tuple[int, int], cap: int | None, picked: int) -> None:
    """Produce, of which kio has 3 to 13: at most what the broker offers, what kio has and what the caller allows."""
    assert picked == Versions({0: offered}).pick(Api.PRODUCE, cap)


@pytest.mark.parametrize(
    ("offered", "cap", "says"),
    [
        ({}, None, "the broker doesn't offer PRODUCE; this client needs one of versions 3 to 13"),
        ({0: (0, 2)}, None, "PRODUCE: the broker offers versions 0 to 2, this client knows 3 to 13"),
        ({0: (14, 20)}, None, "PRODUCE: the broker offers versions 14 to 20, this client knows 3 to 13"),
        ({0: (10, 13)}, 9, "this client knows 3 to 13; this request may use version 9 at most"),
        ({0: (3, 13)}, 2, "this client knows 3 to 13; this request may use version 2 at most"),
    ],
)
def test_no_common_version_names_both_ranges(offered: dict[int, tuple[int, int]], cap: int | None, says: str) -> None:
    """The reader sees which API, what the broker has and what we have: the broker's too old or too new."""
    with pytest.raises(UnsupportedError, match=re.escape(says)):
        Versions(offered).pick(Api.PRODUCE, cap)


@given(st.sampled_from(Api), st.tuples(st.integers(0, 20), st.integers(0, 20)), st.none() | st.integers(0, 20))
def test_a_pick_is_in_every_range(api: Api, offered: tuple[int, int], cap: int | None) -> None:
    """Against the plain definition: the largest number in all ranges, or an error if there is none."""
    common = [
        version
        for version in range(offered[0], offered[1] + 1)
        if version in known_versions(api) and (cap is None or version <= cap)
    ]
    versions = Versions({api: offered})
    if common:
        assert max(common) == versions.pick(api, cap)
    else:
        with pytest.raises(UnsupportedError, match=api.name):
            versions.pick(api, cap)


@pytest.mark.parametrize("api", Api)
def test_every_api_has_its_request_types(api: Api) -> None:
    """Names and keys agree with kio's, for each version that it has."""
    for version in known_versions(api):
        kind = request_type(api, version)
        assert (api.name.replace("_", "").lower() + "request", api, version) == (
            kind.__name__.lower(),
            kind.__api_key__,
            kind.__version__,
        )


def test_an_unknown_version_is_unsupported() -> None:
    """Asking for what kio doesn't have is told in words."""
    with pytest.raises(UnsupportedError, match="FETCH version 3 is unknown; this client knows 4 to 18"):
        request_type(Api.FETCH, 3)
