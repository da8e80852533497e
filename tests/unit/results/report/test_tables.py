"""Client counters in the report."""

from aftershock.results.report.tables import counters


def line(arm: str, op: str, **counters: int) -> dict[str, object]:
    return {"event": "counters", "workload": "orders", "arm": arm, "op": op, "counters": counters}


def test_a_missing_counter_differs_from_zero() -> None:
    """Arms are side by side per operation; a missing counter is None, and a counter without events is 0."""
    events = [
        line("response", "produce", hints_accepted=7, sent=100),
        line("metadata", "produce", hints_accepted=0, sent=100),
        line("confluent", "produce", sent=99),
        line("response", "consume", fetches_full=1),
        {"event": "hint_accepted", "arm": "response"},
    ]
    table = counters(events, {"orders/response": "arm=response"})
    assert ["consume", "produce"] == [*table]
    assert (["arm=response", "orders/metadata", "orders/confluent"], [("hints_accepted", [7, 0, None])]) == (
        table["produce"][0],
        table["produce"][1][:1],
    )


def test_runs_without_closing_counters_have_no_section() -> None:
    assert {} == counters([{"event": "phase"}], {})
