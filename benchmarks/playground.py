"""How long the playground takes for its first picture, a step and a frame, in headless Chromium.

    python benchmarks/playground.py

Every learner of the page and 20 seeds at d = 2, and what larger dimensions cost. Script time is
that of `performance.now()` in the page; a frame is the callback that computes and draws, without
the browser's own painting. Where the machine does other work too, clocks say less than the time of
the processor and the least of many.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from driftrate.playground import build

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
STEP = """dim => {
  const run = page.history;
  run.begin({ ...settings(), dim });
  let least = Infinity;
  for (let block = 0; block < 40 && run.cost < 1500; block++) {
    const begin = performance.now(), until = Math.min(run.head + (dim > 8 ? 2 : 20), STEPS);
    const first = run.head;
    run.compute(until, Infinity);
    least = Math.min(least, (performance.now() - begin) / (until - first));
  }
  return least;
}"""
DRAW = """() => {
  page.step = STEPS - 1;
  return Math.min(...Array.from({ length: 60 }, () => {
    const begin = performance.now();
    draw();
    return performance.now() - begin;
  }));
}"""


def main() -> None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("benchmarks/playground.py needs Playwright: pip install 'driftrate[dev]'")
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("benchmarks/playground.py needs Chromium on the path")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "index.html"
        path.write_text(build(), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        print(f"the page: {path.stat().st_size / 1000:.0f} kB")
        firsts = []
        for _ in range(5):
            page = _visit(browser, path, 500)
            firsts.append(page.evaluate("page.first"))
            page.close()  # or it would play on beside what is timed
        print(f"first picture: after {min(firsts):.0f} ms, the fastest of 5 visits")
        page = _visit(browser, path, 0)
        for phase, condition in (
            ("computes and plays", "page.history.head === STEPS"),
            ("plays", "page.step > 400"),
        ):
            each = _script(page, condition)
            print(
                f"script of a frame that {phase}, d = 2: {each:.1f} ms of the processor, the mean"
            )
        drawing, budget = page.evaluate(DRAW), page.evaluate("BUDGET")
        steps = {dim: page.evaluate(STEP, dim) for dim in page.evaluate("DIMENSIONS")}
        print(f"of it, at least: {drawing:.1f} ms for all pictures at the last step")
        for dim, each in steps.items():
            print(f"a step of 7 learners and 20 seeds, d = {dim}: {each:.2f} ms at least")
        busiest = drawing + budget + steps[2]
        print(f"a frame that draws all, and computes until its budget is spent: {busiest:.1f} ms")
        browser.close()


def _visit(browser: Any, path: Path, milliseconds: int) -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_timeout(milliseconds)
    return page


def _script(page: Any, condition: str) -> float:
    """Return the mean of a frame's script until a condition holds, in the processor's time."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> tuple[float, int]:
        found = session.send("Performance.getMetrics")["metrics"]
        seconds = next(one["value"] for one in found if one["name"] == "ScriptDuration")
        return 1000 * seconds, page.evaluate("page.frames")

    before = spent()
    page.wait_for_function(condition, polling=200, timeout=60_000)
    after = spent()
    session.detach()
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


if __name__ == "__main__":
    main()
