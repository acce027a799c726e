"""The picture of the playground, taken in headless Chromium.

python docs/_site/play_picture.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from driftrate.playground import build

OUT = Path(__file__).parent.parent / "images" / "playground.png"


def main() -> None:
    """Open the page a hundred steps after the fourth jump."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "index.html"
        path.write_text(build(), encoding="utf-8")
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 846})
        page.goto(f"{path.as_uri()}#step=1100")
        page.wait_for_function("page.history.head > 1100", timeout=120_000)
        page.wait_for_timeout(500)
        page.screenshot(path=OUT)
        browser.close()


if __name__ == "__main__":
    main()
