"""What commas, dots and signs of money in a column of numbers mean, and where that is unsure.

It needs pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from driftrate.data import _values
from driftrate.errors import ConfigError, DataError

# Commas of thousands, where nothing else would write the number so: 1,234 alone may be 1.234.
_SURE = r"\.|,\d{3},|^\D*[1-9]\d{0,2}\D*$|[$£¥]"
_DOTTED = r"^\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*$"


@dataclass
class Signs:
    """The signs in the text of one column, learnt piece by piece."""

    marks: set[str] = field(default_factory=set)
    thousands: bool = False  # commas, in the marked style
    dots: bool = False  # dots, in the plain style
    sure: bool = False  # whether these can mean one thing alone

    def look(self, array: Any, style: _values.Style) -> None:
        """Take in one piece of text."""
        if style == "plain":
            dots = _values.count(array, r"\.")
            self.dots = self.dots or dots > 0
            self.sure = self.sure or dots > _values.count(array, _DOTTED)
            return
        self.marks |= _values.marks(array)
        if style == "marked":
            self.thousands = self.thousands or _values.count(array, ",") > 0
            self.sure = self.sure or _values.count(array, _SURE) > 0

    def check(self, what: str, name: str, commas: bool) -> None:
        """Raise an error where the signs may mean two things, or not one.

        Args:
            what: target or column.
            name: Its name.
            commas: Whether other columns of the table have decimal commas.
        """
        if not self.sure and (self.thousands or (self.dots and commas)):
            shown = "1,234" if self.thousands else "1.234"
            raise ConfigError(
                f"{what} {name!r} may hold thousands or decimals ({shown}):"
                f" say --kind {name}=number or --kind {name}=decimal-comma"
            )
        signs = self.marks - {""}
        if len(signs) > 1 or ("%" in signs and "" in self.marks):
            found = " and ".join(sorted(repr(one) if one else "none" for one in self.marks))
            differ = f"values with different signs ({found})"
            raise DataError(f"column {name!r} has {differ}: make them one")
