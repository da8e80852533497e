"""Which version is picked, and what is said when there is none."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftershock.errors import UnsupportedError
from aftershock.workloads.kafka.wire.codec import Api, Versions, known_versions, request_type


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
        ({0: (10, 13)}, 9, "this client knows 3 to 13 and may use at most 9"),
        ({0: (3, 13)}, 2, "this client knows 3 to 13 and may use at most 2"),
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
