"""What the report of a demo and of a two-hour soak cost: ``python tests/bench/bench_report.py``.

The soak is the stored run of the demo, repeated until it has lasted two hours with forty faults (``stored_report``).
Each page is written once and opened in a headless Chromium several times, each time in a tab of its own. Compare CPU
seconds of the page's main thread: wall time is the machine's, with whatever else runs on it.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from aftershock.results.report.page import write_report
from aftershock.tests import browser
from aftershock.tests.stored_report import BYTES_MAX, TWO_HOURS_S, judged_demo, lengthened

OPENED, CPU_S_MAX = 5, 1.0
LOADED_MS = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def opened(page: Path) -> tuple[float, float]:
    """Return the CPU seconds of the page's main thread, and the seconds until it was loaded."""
    with browser.tab() as tab:
        tab.call("Performance.enable", timeDomain="threadTicks")
        tab.open(page)
        loaded_s = tab.run(LOADED_MS) / 1000
        measured = {metric["name"]: metric["value"] for metric in tab.call("Performance.getMetrics")["metrics"]}
        return measured["TaskDuration"], loaded_s


def main() -> int:
    if browser.find() is None:
        print("skipped: needs Chromium (apt install chromium)")
        return 0
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        demo, soak = (judged_demo(Path(folder) / name) for name in ("demo", "soak"))
        for home in (demo, lengthened(soak, TWO_HOURS_S)):
            begun_s = time.process_time()
            page = write_report(home)
            written_s, size = time.process_time() - begun_s, page.stat().st_size
            cpu_s, loaded_s = map(statistics.median, zip(*(opened(page) for _ in range(OPENED)), strict=True))
            print(
                f"{home.name}: {size / 1e6:.2f} MB (at most {BYTES_MAX / 1e6:.0f}), written in {written_s:.1f} CPU s; "
                f"opens in {cpu_s:.2f} CPU s (at most {CPU_S_MAX:g}), {loaded_s:.2f} s of wall time"
            )
            missed |= size > BYTES_MAX or cpu_s > CPU_S_MAX
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
