"""The counters of the clients, as the report shows them."""

from aftershock.results.report.tables import counters


def line(arm: str, op: str, **counters: int) -> dict[str, object]:
    return {"event": "counters", "workload": "orders", "arm": arm, "op": op, "counters": counters}


def test_a_counter_that_one_arm_lacks_is_told_from_zero() -> None:
    """Arms stand side by side, by operation; no such counter is None, none counted is 0."""
    events = [
        line("response", "produce", hints_accepted=7, sent=100),
        line("metadata", "produce", hints_accepted=0, sent=100),
        line("confluent", "produce", sent=99),
        line("response", "consume", fetches_full=1),
        {"event": "hint_accepted", "arm": "response"},
    ]
    told = counters(events, {"orders/response": "arm=response"})
    assert ["consume", "produce"] == [*told]
    assert (["arm=response", "orders/metadata", "orders/confluent"], [("hints_accepted", [7, 0, None])]) == (
        told["produce"][0],
        told["produce"][1][:1],
    )


def test_clients_that_died_counted_nothing() -> None:
    """A run without closing counters has no such section."""
    assert {} == counters([{"event": "phase"}], {})
