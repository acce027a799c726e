"""What griffe does not know of the docstrings here: "Example:" is a section of examples."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

TITLES = {"Example": "Examples"}


class House(Extension):
    """Gives the sections of a docstring the names that griffe knows."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename the titles of one docstring."""
        if obj.docstring:
            for ours, theirs in TITLES.items():
                obj.docstring.value = re.sub(
                    rf"^{ours}:$", f"{theirs}:", obj.docstring.value, flags=re.MULTILINE
                )
