"""How long the playground takes for its first picture, a step and a frame, in headless Chromium.

    python benchmarks/playground.py

Every learner of the page and 20 seeds at d = 2, and what larger dimensions cost. Script time is
that of `performance.now()` in the page; a frame is the callback that computes and draws, without
the browser's own painting.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from driftrate.playground import build

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run")
FRAMES = """() => {
  const sorted = [...page.frames].sort((a, b) => a - b);
  return [0.5, 0.95].map(share => sorted[Math.floor(share * (sorted.length - 1))]);
}"""
STEP = """dim => {
  page.history.begin({ ...settings(), dim });
  const begin = performance.now();
  page.history.compute(STEPS, 1500);
  return (performance.now() - begin) / page.history.head;
}"""
FIRST = "page.first"


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
        firsts = [_visit(browser, path, 300).evaluate(FIRST) for _ in range(5)]
        print(f"first picture after {min(firsts):.0f} ms (the fastest of 5 visits)")
        page = _visit(browser, path, 9000)
        middle, late = page.evaluate(FRAMES)
        print(f"a frame of script, d = 2: median {middle:.1f} ms, 95 % below {late:.1f} ms")
        for dim in page.evaluate("DIMENSIONS"):
            each = min(page.evaluate(STEP, dim) for _ in range(2))
            print(f"a step of 7 learners and 20 seeds, d = {dim}: {each:.2f} ms")
        browser.close()


def _visit(browser: Any, path: Path, milliseconds: int) -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_timeout(milliseconds)
    return page


if __name__ == "__main__":
    main()
