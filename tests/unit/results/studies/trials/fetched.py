"""Counters of consumers whose fetches have known costs."""

from typing import Any

from aftershock.results.studies.part import STEADY_SLICE_US

RECORD_BYTES = 900


def counted(worker: str, kind: str, a_fetch: float, slices: int = 8) -> list[dict[str, Any]]:
    """Return the counters of a consumer with ten fetches per slice, sampled at the slices' ends; requests are a
    third of the bytes.
    """
    grown = {f"fetches_{kind}": 10.0, f"fetch_record_bytes_{kind}": 10.0 * RECORD_BYTES}
    grown[f"fetch_request_bytes_{kind}"] = 10 * a_fetch / 3
    grown[f"fetch_response_bytes_{kind}"] = 10 * (a_fetch * 2 / 3 + RECORD_BYTES)
    return [
        {"t_us": number * STEADY_SLICE_US, "broker_id": None, "name": f"client.{name}/{worker}", "value": number * by}
        for name, by in grown.items()
        for number in range(slices + 1)
    ]
