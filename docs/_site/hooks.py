"""What mkdocs does besides rendering Markdown: pages that are made, fonts, formulas, sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import fonts  # noqa: E402
import formulas  # noqa: E402
import gallery  # noqa: E402
import reference  # noqa: E402

# A link from a page to a source file of the repository.
SOURCE = re.compile(r"\]\(\.\./([\w./-]+)\)")
BAR = re.compile(r"\{([\d.,]+) for ([\d.,]+)\}")
LONGEST = 5.0  # a bar; what is longer is shown cut off
WAITING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Playground</title>
<body><p>The playground is not built here.</p></body></html>
"""


@event_priority(100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the formulas, also for docstrings, before mkdocstrings looks."""
    config.markdown_extensions.append(formulas.Formulas())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""

    def add(path: str, text: str) -> None:
        files.append(File.generated(config, path, content=text))

    docs = Path(config.docs_dir)
    add("changelog.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    add("gallery.md", gallery.page(ROOT / "examples", docs / "images"))
    for name, text in reference.pages(ROOT / "tests" / "public_names.txt").items():
        add(f"reference/{name}", text)
    if files.get_file_from_path("playground/index.html") is None:
        add("playground/index.html", WAITING)
    linked = {
        path
        for file in docs.glob("*.md")
        for path in SOURCE.findall(file.read_text(encoding="utf-8"))
    }
    for path in sorted(linked):
        text = (ROOT / path).read_text(encoding="utf-8")
        kind = {".py": "python", ".md": "markdown"}.get(Path(path).suffix, "text")
        add(f"source/{path}.md", f"# {path}\n\n````{kind}\n{text}````\n")
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Lead links to source files to their copies; draw what "{1.53 for 1.36}" says."""

    def bar(found: re.Match[str]) -> str:
        times = float(found[1].replace(",", "")) / float(found[2].replace(",", ""))
        cut = " cut" if times > LONGEST else ""
        drawn = f'<span class="bar{cut}" style="--times:{times:.2f}"></span>'
        return f'<span class="ratio">{found[1]} for {found[2]}{drawn}</span>'

    markdown = BAR.sub(bar, markdown)
    return SOURCE.sub(r"](source/\1.md)", markdown)


@event_priority(-100)
def on_post_build(config: MkDocsConfig) -> None:
    """Write the fonts, and the index of the search for pages that are opened from a disk."""
    search = Path(config.site_dir) / "search"
    index = (search / "search_index.json").read_text(encoding="utf-8")
    (search / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
    for name in fonts.FONTS:
        fonts.cut(name, Path(config.site_dir) / "assets" / "fonts")
