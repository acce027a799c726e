"""What tests of the playground ask of its page."""

from __future__ import annotations


def shared(page):
    """Return the address, once it is that of what is shown."""
    page.wait_for_function("location.hash.slice(1) === address(!page.playing && page.step > 0)")
    return page.evaluate("location.href")
