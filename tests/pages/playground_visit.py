"""What tests of the playground ask of its page."""

from __future__ import annotations


def shared(page):
    """Return the address, once it is that of what is shown."""
    page.wait_for_function("location.hash.slice(1) === address(!page.playing)")
    return page.evaluate("location.href")


def shown(page, words):
    """Go to an address and wait until it is computed and drawn."""
    page.evaluate("""words => new Promise(done => {
      addEventListener("hashchange", done, { once: true });
      location.hash = words;
    })""", words)  # fmt: skip
    page.evaluate("page.history.compute(Math.floor(page.step) + 1, Infinity); page.stale = true")
    page.wait_for_function("!page.stale")
