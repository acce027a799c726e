"""What griffe does not know of the docstrings here: the names of sections, and named tuples."""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, Extension, Object


class House(Extension):
    """Gives the sections of a docstring the names that griffe knows."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the titles of one docstring."""
        titles = {"Example": "Examples"}
        # A named tuple has no signature of its own: what it is made of are its attributes.
        if isinstance(obj, Class) and any(str(one).endswith("NamedTuple") for one in obj.bases):
            titles["Args"] = "Attributes"
        if obj.docstring:
            for ours, theirs in titles.items():
                obj.docstring.value = re.sub(
                    rf"^{ours}:$", f"{theirs}:", obj.docstring.value, flags=re.MULTILINE
                )
