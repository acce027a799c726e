"""The pages of the API reference, one a room, from the list of public names."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).parent.parent.parent / "src"
ROOMS = {
    "driftrate": "The rates, the learners and the simulator, as `import driftrate as dr` has them.",
    "driftrate.torch": "PyTorch.",
    "driftrate.optax": "Optax and JAX.",
    "driftrate.keras": "Keras 3.",
    "driftrate.river": "River.",
    "driftrate.sklearn": "scikit-learn.",
    "driftrate.schedules": "Where the rates live.",
    "driftrate.estimate": "What a schedule needs and nobody tells it.",
    "driftrate.learners": "Pools, mixers, projections.",
    "driftrate.streams": "Nature: paths of the target, and the batches that follow it.",
    "driftrate.simulation": "Regret without drawing a batch.",
    "driftrate.theory": "The paper's statements as functions.",
    "driftrate.race": "The race, from Python.",
    "driftrate.data": "What comes from outside.",
    "driftrate.errors": "What is raised, and why.",
}


def names(file: Path) -> dict[str, list[str]]:
    """Return the public names of each room."""
    found: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name in file.read_text(encoding="utf-8").split():
        room, _, last = name.rpartition(".")
        if name not in found:
            found[room].append(last)
    return found


def written(rooms: dict[str, list[str]], room: str, name: str) -> list[str]:
    """Return the lines that show one name.

    Where a function is in a module of its own name, a reader of sources finds the module first: it
    is then asked for by where it is written, and can be linked by its public name all the same.
    """
    for one in [room, *(one for one in rooms if name in rooms[one])]:
        folder = SOURCES.joinpath(*one.split("."))
        for module in (folder / f"{name}.py", folder / name / "__init__.py"):
            if module.exists() and f"\ndef {name}(" in module.read_text(encoding="utf-8"):
                return [f"[](){{#{room}.{name}}}", "", f"::: {one}.{name}.{name}", ""]
    return [f"::: {room}.{name}", ""]


def pages(file: Path) -> dict[str, str]:
    """Return the text of each page of the reference, by its name."""
    rooms = names(file)
    home = dict.fromkeys(rooms["driftrate"], "driftrate")
    made = {}
    index = [
        "# Reference",
        "",
        "Every public name. What is not here may change without notice.",
        "",
    ]
    for room, about in ROOMS.items():
        lines = [f"# {room} {{ #{room} }}", ""]
        lines += [f"::: {room}", "    options:", "        members: false"]
        lines += ["        show_root_heading: false", "        show_root_toc_entry: false", ""]
        elsewhere = []
        for name in rooms[room]:
            if home.get(name, room) != room:
                elsewhere.append(name)
                continue
            lines += written(rooms, room, name)
        if elsewhere:
            lines += ["## Told elsewhere", ""]
            for name in elsewhere:
                lines.append(f'- <a id="{room}.{name}"></a>`{name}`: [driftrate.{name}][]')
            lines.append("")
        made[f"{room}.md"] = "\n".join(lines)
        index += [f"## [{room}]({room}.md)", "", about, ""]
        if rooms[room]:
            where = [f"[`{name}`][{home.get(name, room)}.{name}]" for name in rooms[room]]
            index += [" · ".join(where), ""]
    made["index.md"] = "\n".join(index)
    return made
