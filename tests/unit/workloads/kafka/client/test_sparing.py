"""What repeats itself is told only so often; what is new always is."""

from aftershock.workloads.kafka.client.tasks import BURST, REPEAT_MS, RateLimitedListener


class Ear:
    """Who is told, and the clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.heard: list[tuple[str, dict[str, object]]] = []
        self.tell = RateLimitedListener(self._hear, lambda: self.now_ms)

    def _hear(self, event: str, **details: object) -> None:
        self.heard.append((event, details))


def test_a_flood_is_told_a_few_times_and_then_once_a_while() -> None:
    """A thousand times a second for ten seconds: bounded, and seen to go on."""
    ear = Ear()
    for ear.now_ms in range(int(10 * REPEAT_MS)):
        ear.tell("switched", partition=0, node_id=2)
    assert BURST + 9 == len(ear.heard)


def test_what_differs_in_anything_is_news() -> None:
    """Another event, another partition, another reason: none of them is left out for another's sake."""
    ear = Ear()
    said = [
        ("switched", {"partition": 0}),
        ("left", {"partition": 0}),
        ("left", {"partition": 1}),
        ("left", {"why": 3}),
    ]
    for _ in range(BURST):
        for event, details in said:
            ear.tell(event, **details)
    assert said * BURST == ear.heard


def test_after_a_quiet_while_everything_is_told_again() -> None:
    """The flood of long ago is forgiven."""
    ear = Ear()
    for _ in range(100):
        ear.tell("switched")
    ear.now_ms = BURST * REPEAT_MS
    for _ in range(100):
        ear.tell("switched")
    assert 2 * BURST == len(ear.heard)
