"""What griffe does not know of the docstrings: names of sections, named tuples, inner products."""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, Extension, Object

# <x, θ> would be read as a tag.
PRODUCT = re.compile(r"<([^<>=\n\"]{1,30},[^<>=\n\"]{1,30})>")


class House(Extension):
    """Gives the sections of a docstring the names that griffe knows."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Write one docstring as griffe and Markdown want it."""
        titles = {"Example": "Examples"}
        # A named tuple has no signature of its own: what it is made of are its attributes.
        if isinstance(obj, Class) and any(str(one).endswith("NamedTuple") for one in obj.bases):
            titles["Args"] = "Attributes"
        if obj.docstring:
            obj.docstring.value = PRODUCT.sub(r"⟨\1⟩", obj.docstring.value)
            for ours, theirs in titles.items():
                obj.docstring.value = re.sub(
                    rf"^{ours}:$", f"{theirs}:", obj.docstring.value, flags=re.MULTILINE
                )
