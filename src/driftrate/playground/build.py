"""The page, put together: one file with everything inside."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from driftrate.playground.rules import javascript

SCRIPTS = (
    "random",
    "batch",
    "paths",
    "world",
    "history",
    "draw",
    "address",
    "hand",
    "embed",
    "page",
)
"""The scripts of the page, in their order; the rules come before all of them."""


def build(home: str = "") -> str:
    """Return the page as HTML.

    Args:
        home: The address of the site that the page is part of, if it is.

    Example:
        >>> page = build()
        >>> page.startswith("<!doctype html>"), "http" in page
        (True, False)
    """
    script = "\n".join([javascript(), *(_text(f"{name}.js") for name in SCRIPTS)])
    page = _text("page.html").replace("/*STYLE*/", _text("page.css"))
    if home:
        page = page.replace("<!--HOME-->", f'<a href="{escape(home)}">').replace(
            "<!--/HOME-->", "</a>"
        )
    return page.replace("/*SCRIPT*/", script.replace("</", r"<\/"))


def _text(name: str) -> str:
    return (files("driftrate.playground") / name).read_text(encoding="utf-8")
