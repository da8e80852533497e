"""When a client asks for metadata again.

1. A request is due when one was requested, or ``max_age_ms`` after the last answer; before the first answer it is
   requested.
2. Never while a request is in flight, nor before the back-off since the last answer or failure is over.
3. The back-off grows with consecutive failures, and with consecutive *equivalent* answers: those that taught no leader
   epoch. Brokers that haven't heard of a change yet are thus not asked in a tight loop. Old age forgets the
   equivalents.
4. What is needed for the first time (a new topic) is asked for at once, without back-off.
5. An answer satisfies whatever was requested while it was under way, except what the request didn't name.

Source: ``clients/Metadata.java`` (``timeToNextUpdate``, ``timeToAllowUpdate``, ``requestUpdate(false)``). Kafka draws
one back-off for failures and one for equivalents and takes the larger; here it is one draw. Only one of the two can be
above 0.
"""

from math import inf

from aftershock.workloads.rules.backoff import Backoff


class Refresh:
    """The timetable of one client's Metadata requests; times in milliseconds on the caller's clock."""

    def __init__(self, max_age_ms: float, backoff: Backoff) -> None:
        self.equivalents = 0
        """Answers in a row that taught no epoch."""
        self._max_age_ms = max_age_ms
        self._backoff = backoff
        self._requested = True
        self._in_flight = False
        self._failures = 0
        self._answered_ms = -inf
        self._refreshed_ms = -inf

    def request(self) -> None:
        """Ask as soon as the back-off allows."""
        self._requested = True

    def request_at_once(self) -> None:
        """Ask without back-off (rule 4)."""
        self._requested = True
        self._refreshed_ms = -inf
        self.equivalents = 0

    def wait_ms(self, now_ms: float) -> float:
        """How long until a request is due: 0 is now, infinite while one is in flight. Draws a back-off if it counts."""
        if self._in_flight:
            return inf
        until_old = max(0.0, self._answered_ms + self._max_age_ms - now_ms)
        if until_old == 0:
            self.equivalents = 0
        wait_ms = 0.0 if self._requested else until_old
        if (
            wait_ms >= self._backoff.max_ms
        ):  # no back-off is longer; whoever asks in every turn of its loop is spared it
            return wait_ms
        return max(wait_ms, self._until_allowed_ms(now_ms))

    def _until_allowed_ms(self, now_ms: float) -> float:
        attempt = max(self._failures, self.equivalents, 1) - 1
        return max(0.0, self._refreshed_ms + self._backoff.ms(attempt) - now_ms)

    def asked(self) -> None:
        """A request is under way."""
        self._in_flight = True

    def answered(self, now_ms: float, *, complete: bool) -> None:
        """It was answered. ``complete``: it named everything that is wanted by now (rule 5)."""
        self._in_flight = False
        self._requested = not complete
        self._answered_ms = self._refreshed_ms = now_ms
        self._failures = 0
        self.equivalents += 1

    def advanced(self) -> None:
        """The answer taught an epoch: it was no equivalent."""
        self.equivalents = 0

    def failed(self, now_ms: float) -> None:
        """It got no answer that can be used; what was requested still is."""
        self._in_flight = False
        self._refreshed_ms = now_ms
        self._failures += 1
        self.equivalents = 0
