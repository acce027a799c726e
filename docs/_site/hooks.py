"""What mkdocs does besides rendering Markdown: pages that are made, fonts, formulas, sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from driftrate.playground.build import build

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
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
FIGURE = re.compile(
    r"<td>((?:<strong>)?[\d.,]+(?:</strong>)?"
    r"(?: (?:[(±→×%●\d][^<a-z]{0,18}|µs|ms|s|[KMG]i?B))?)</td>"
)
OPTION = re.compile(r"(?<![\w-])--?\w[\w-]*")
INLINE = re.compile(r"<code>[^<]*</code>")
# A link that is named after the file it leads to, as it is read in the repository.
NAMED = re.compile(r"\[(?:docs/)?(\w+\.md)\](?=\((?:docs/)?\1)")
LONG = re.compile(r"(?:(?<=<code>)[^<]{16,}|(?<=<td>)[^<\s]{16,})(?=</)")
BREAK = re.compile(r"::|[/_.,=](?=[^/_.,=])")
WIDE = {"statements.md", "errata.md"}
VERDICTS = {
    "holds": "yes",
    "holds corrected": "part",
    "holds weakly": "part",
    "false as printed": "no",
    "false in effect": "no",
}
VERDICT = re.compile(rf"<td>({'|'.join(sorted(VERDICTS, key=len, reverse=True))})")
LONGEST = 5.0  # a bar; what is longer is shown cut off


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
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    changes = re.sub(r"^## \[(.+?)\]", r"## \1", changes, flags=re.MULTILINE)
    add("changelog.md", changes.replace("](docs/", "]("))
    add("gallery.md", gallery.page(ROOT / "examples", docs / "images"))
    for name, text in reference.pages(ROOT / "tests" / "public_names.txt").items():
        add(f"reference/{name}", text)
    add("playground/index.html", build(home="../index.html"))
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
    """Lead links to sources to their copies, name others by titles; draw "{1.53 for 1.36}"."""

    def bar(found: re.Match[str]) -> str:
        times = float(found[1].replace(",", "")) / float(found[2].replace(",", ""))
        cut = " cut" if times > LONGEST else ""
        drawn = f'<span class="bar{cut}" style="--times:{times:.2f}"></span>'
        return f'<span class="ratio">{found[1]} for {found[2]}{drawn}</span>'

    def title(found: re.Match[str]) -> str:
        file = ROOT / "docs" / found[1]
        heading = ("\n" + file.read_text(encoding="utf-8")).partition("\n# ")[2].splitlines()[0]
        return f"[{heading.partition(':')[0]}]"

    markdown = NAMED.sub(title, BAR.sub(bar, markdown))
    return SOURCE.sub(r"](source/\1.md)", markdown)


def on_page_content(html: str, page: Page, **kwargs: Any) -> str:
    """Let names break in tables, figures and options not; give verdicts their colour."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri == "statements.md":
        html = VERDICT.sub(
            lambda m: f'<td><span class="verdict {VERDICTS[m[1]]}">{m[1]}</span>', html
        )
    html = INLINE.sub(lambda code: OPTION.sub(r'<span class="whole">\g<0></span>', code[0]), html)
    html = FIGURE.sub(r'<td class="figure">\1</td>', html)
    return CELL.sub(lambda cell: LONG.sub(lambda m: BREAK.sub(r"\g<0><wbr>", m[0]), cell[0]), html)


@event_priority(-100)
def on_post_build(config: MkDocsConfig) -> None:
    """Write the fonts, and the index of the search for pages that are opened from a disk."""
    search = Path(config.site_dir) / "search"
    index = (search / "search_index.json").read_text(encoding="utf-8")
    (search / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
    for name in fonts.FONTS:
        fonts.cut(name, Path(config.site_dir) / "assets" / "fonts")
