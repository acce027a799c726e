"""The gallery: each example with its picture, its docstring and its source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

# The line that says how a program is run, variables of the environment before it.
COMMAND = re.compile(r"(?:\w+=\S* )*python ")
ORDER = ("first_look", "attach_to_a_loop", "follow_in_jit", "follow_in_fit", "follow_one_by_one")


def page(examples: Path, images: Path) -> str:
    """Return the page."""
    lines = [
        "---",
        "hide: [navigation]",
        "---",
        "",
        "# Gallery",
        "",
        "Every picture was drawn by the program under it, with the command at its head.",
        "",
    ]
    files = {file.stem: file for file in sorted(examples.glob("*.py"))}
    for name in [*ORDER, *(one for one in files if one not in ORDER)]:
        source = files[name].read_text(encoding="utf-8")
        title, _, more = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
        more = "\n".join(line for line in more.splitlines() if not COMMAND.match(line))
        if not (images / f"{name}.png").exists():
            raise FileNotFoundError(f"no picture of {name}: python examples/{name}.py")
        lines += [f"## {title.rstrip('.').partition(':')[0]} {{ #{name} }}", ""]
        rest = title.partition(":")[2].strip()
        if rest:
            lines += [rest[0].upper() + rest[1:], ""]
        lines += [more.strip(), "", f"![{title}](images/{name}.png){{ .plot }}", ""]
        lines += [f'??? example "examples/{name}.py"', "", "    ```python"]
        lines += [f"    {line}".rstrip() for line in source.splitlines()]
        lines += ["    ```", ""]
    return "\n".join(lines)
