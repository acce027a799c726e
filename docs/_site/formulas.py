"""Set the formulas that docstrings and pages write in Unicode, as MathML: no script, no images.

A formula is an indented block with mathematics in it, a line a row:

    v ← (1 - η)² v + η² ((d + 1) v + σ² d)/B

In running text a letter with an index (γ_{t-1}, θ*_t) gets a real one. What the theory's docstrings
write in LaTeX, as `.. math::` and `:math:`, is set too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, fromstring

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor
from markdown.util import AtomicString
from spacing import FUNCTIONS, polish

MATHML = "http://www.w3.org/1998/Math/MathML"
SPECIAL = set("←√Σ∇∫≤≥⟨‖⁻∈∝∞∂·±⌈ζηθκλμπρστφωαβγδεξΔΦΓℓ²ᵀ")
COMMAND = re.compile(
    r"^\s*(\$|>>>|#|python |pytest |make |pip |driftrate |import |from |for |def |class |@)"
    r"|\"|==",
    re.MULTILINE,
)
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀᵗᵏ°", "0123456789+−nTtk°", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₖₜ", "0123456789+−kt", strict=True))
ACCENTS = {"\u0302": "^", "\u0304": "¯", "\u0303": "~", "\u0307": "˙"}
PAIRS = {"(": ")", "[": "]", "{": "}", "⟨": "⟩", "⌈": "⌉", "⌊": "⌋"}
BARS = "‖|"
RELATIONS = set("=≠←<>≤≥~∝∈→≈,;:")
SIGNS = set("+-−±")
OPERATORS = RELATIONS | SIGNS | set("·×∘∧∨!.…*%&^~") | set(PAIRS.values())
TWO = {"<=": "≤", ">=": "≥", "->": "→", "<-": "←", "+=": "+=", ":=": ":="}
SYMBOLS = set("∇∫∞∂∅ℝℓ½¼⅓⅔⅛°")
TOKEN = re.compile(
    r"(?P<gap>\s{2,})|(?P<space>\s)|(?P<dots>\.\.\.)"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
    r"|(?P<code>`[^`]*`)"
    r"|(?P<word>[A-Za-zé]{2,}(?:[_-][A-Za-z]{2,})*)"
    r"|(?P<two><=|>=|->|<-|\+=|:=)"
    r"|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀᵗᵏ°]+)|(?P<lowered>[₀₁₂₃₄₅₆₇₈₉₊₋ₖₜ]+)"
    r"|(?P<one>.)",
    re.DOTALL,
)


LARGE = {"Σ": "∑", "Π": "∏"}
PRODUCT = re.compile(r"^(?=.{2,3}$).?[A-Z]+$")


class Unknown(ValueError):
    """A character that no rule sets."""


def decomposed(text: str) -> str:
    """Return a text whose accents stand behind their letters."""
    return unicodedata.normalize("NFD", text).replace("=\u0338", "≠")


def looks_like_mathematics(text: str) -> bool:
    """Return whether an indented block is a formula and not a command or a program."""
    signs = SPECIAL & set(decomposed(text))
    return not COMMAND.search(text) and bool(signs or re.search(r"\b\w(_\w|')", text))


def element(tag: str, *children: Element, text: str = "", **attributes: str) -> Element:
    """Return an element with children or a text."""
    made = Element(tag, attributes)
    made.extend(children)
    if text:
        made.text = AtomicString(text)  # no underscores and stars are read in it
    return made


PLAIN: dict[str, Callable[[str], Element]] = {
    "number": lambda text: element("mn", text=text),
    "code": lambda text: element("mtext", text=text.strip("`"), **{"class": "code"}),
    "dots": lambda text: element("mo", text="…"),
    "two": lambda text: element("mo", text=TWO[text]),
}


def row(children: list[Element]) -> Element:
    """Return one element for many."""
    return children[0] if len(children) == 1 else element("mrow", *children)


@dataclass
class Line:
    """A reader of one line: tokens in, MathML out."""

    text: str
    tokens: list[tuple[str, str]] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        text = decomposed(self.text.rstrip())
        self.tokens = [(str(one.lastgroup), one.group()) for one in TOKEN.finditer(text)]

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        """Return a token that lies ahead, or an empty one at the end."""
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        """Return the next token and go on."""
        token = self.peek()
        self.at += 1
        return token

    def sequence(self, end: str = "") -> list[Element]:
        """Return what stands before a closing bracket, or before the end of the line."""
        made: list[Element] = []
        term = 0  # where the term began that a fraction would take as its numerator
        while True:
            kind, text = self.peek()
            if kind == "end" or text == end:
                if end and kind == "end":
                    raise Unknown(f"{end!r} is missing in {self.text!r}")
                self.at += 1
                return made
            if kind == "space":
                self.at += 1
                if self.peek() == ("one", "/") and self.peek(1)[0] == "space":
                    self.at += 2
                    made[term:] = [element("mfrac", row(made[term:]), self.denominator(end))]
                elif made and self.apart(made[-1]):
                    made.append(element("mspace", width="0.28em"))
                continue
            if kind == "gap":
                self.at += 1
                if made and self.peek()[1] in RELATIONS:  # it brought two rows' signs in line
                    continue
                made.append(element("mspace", width=f"{min(len(text), 8) * 0.4:.1f}em"))
                term = len(made)
                continue
            made.append(self.atom())
            if text in RELATIONS | SIGNS or kind == "two":
                term = len(made)

    def denominator(self, end: str) -> Element:
        """Return the whole term behind a fraction's stroke: up to a sign, a word or a bracket."""
        made = [self.atom()]
        while True:
            here = 1 if self.peek()[0] == "space" else 0
            kind, text = self.peek(here)
            word = kind == "word" and self.peek(here + 1)[1] != "(" and not PRODUCT.search(text)
            ends = text in {"/", end} or text in OPERATORS
            if kind in {"end", "gap", "two", "dots"} or ends or (word and text not in FUNCTIONS):
                return self.bare(row(made))
            self.at += here
            made.append(self.atom())

    def apart(self, before: Element) -> bool:
        """Return whether a blank is kept here: beside words, and between two numbers."""
        kind, text = self.peek()
        if before.tag == "mo" or text in RELATIONS | {"·"}:  # bring their own
            return False
        numbers = before.tag == "mn" and kind == "number"
        return numbers or before.tag == "mtext" or (kind == "word" and not PRODUCT.search(text))

    def atom(self) -> Element:
        """Return one thing with its accents, powers and indices."""
        kind, text = self.peek()
        base = self.base()
        below, above = list[Element](), list[Element]()
        while True:
            kind, text = self.peek()
            if kind == "raised":
                self.at += 1
                above.append(self.script("".join(RAISED[one] for one in text)))
            elif kind == "lowered":
                self.at += 1
                below.append(self.script("".join(LOWERED[one] for one in text)))
            elif text in ACCENTS:
                self.at += 1
                accent = element("mo", text=ACCENTS[text], stretchy="false")
                base = element("mover", base, accent, accent="true")
            elif text == "'":
                self.at += 1
                above.append(element("mo", text="′"))
            elif text == "*" and self.peek(1)[0] != "space" and base.tag in {"mi", "mover"}:
                self.at += 1
                above.append(element("mo", text="∗", lspace="0", rspace="0"))
            elif text in {"₊"} or (text in {"_", "^"} and self.peek(1)[0] not in {"space", "end"}):
                self.at += 1
                (below if text == "_" else above).append(self.group())
            else:
                break
        if below and above:
            return element("msubsup", base, row(below), row(above))
        if below:
            large = base.tag == "mo" and base.text in {"∑", "∏"}
            return element("munder" if large else "msub", base, row(below))
        return element("msup", base, row(above)) if above else base

    def group(self) -> Element:
        """Return an index: one letter, one word, or what stands in braces."""
        kind, text = self.take()
        if text == "{":
            return row(self.sequence("}"))
        if kind == "word" and len(text) == 2:  # p_jk has two indices
            return row([element("mi", text=one) for one in text])
        if kind in {"word", "number"}:
            return element("mn" if kind == "number" else "mi", text=text)
        return element("mi" if text.isalpha() else "mo", text=text.replace("-", "−"))

    def script(self, text: str) -> Element:
        """Return a raised or lowered text."""
        if text.isdigit():
            return element("mn", text=text)
        return row([element("mi" if one.isalpha() else "mn", text=one) for one in text])

    def bare(self, made: Element) -> Element:
        """Return what is in a pair of round brackets, which a root or a fraction replaces."""
        if made.tag == "mrow" and len(made) > 2 and made[0].text == "(" and made[-1].text == ")":
            return row(list(made)[1:-1])
        return made

    def base(self) -> Element:
        """Return one thing without powers and indices."""
        kind, text = self.take()
        if kind in PLAIN:
            return PLAIN[kind](text)
        if kind == "word":
            return self.word(text)
        if text == "√":
            while self.peek()[0] == "space":
                self.at += 1
            return element("msqrt", self.bare(self.atom()))
        if text in PAIRS:
            return self.fenced(text, self.sequence(PAIRS[text]), PAIRS[text])
        if text in BARS:
            return self.bars(text)
        return self.sign(text)

    def word(self, text: str) -> Element:
        """Return a function with its argument, a product of letters (nG), or a word."""
        if self.peek()[1] == "(":
            return element("mrow", element("mi", text=text), self.base())
        if text in FUNCTIONS:
            return element("mi", text=text)
        if PRODUCT.search(text):
            return element("mrow", *(element("mi", text=one) for one in text))
        return element("mtext", text=text, **({"class": "code"} if "_" in text else {}))

    def sign(self, text: str) -> Element:
        """Return one letter or one operator."""
        if text in LARGE and self.peek()[1] == "_":
            return element("mo", text=LARGE[text], movablelimits="false")
        if text in LARGE and self.peek()[0] == "space":  # a sum, or a matrix: the letter is both
            return element("mo", text=text, lspace="0.1em", rspace="0.15em")
        if text == "/":
            return element("mo", text="/", lspace="0.1em", rspace="0.1em", stretchy="false")
        if text in OPERATORS:
            return element("mo", text=text.replace("-", "−"), stretchy="false")
        if text.isalpha() or text in SYMBOLS:
            upright = {"mathvariant": "normal"} if text in "ΣΠΦΓΔ∇∞" else {}
            return element("mi", text=text, **upright)
        raise Unknown(f"{text!r} (U+{ord(text[0]):04X}) in {self.text!r}")

    def bars(self, text: str) -> Element:
        """Return what stands between two bars, or a bar alone, as of a condition."""
        place = self.at
        try:
            return self.fenced(text, self.sequence(text), text)
        except Unknown:
            self.at = place
            return element("mo", text=text, stretchy="false")

    @staticmethod
    def fenced(left: str, inside: list[Element], right: str) -> Element:
        """Return a pair of brackets with what it holds; they grow with fractions."""
        tall = any(one.tag == "mfrac" or one.find(".//mfrac") is not None for one in inside)
        how = {"stretchy": "true" if tall else "false", "fence": "true"}
        return element(
            "mrow",
            element("mo", text=left, form="prefix", **how),
            *inside,
            element("mo", text=right, form="postfix", **how),
        )


def typeset(block: str) -> Element:
    """Return a block of formulas, a row a line."""
    # Combining accents come first, as the tokens of a letter's own.
    lines = [line for line in block.splitlines() if line.strip()]
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    made = element("div", **{"class": "formula"})
    for line in lines:
        inner = Line(line[indent:].rstrip())
        math = element("math", row(inner.sequence()), xmlns=MATHML, display="block")
        made.append(polish(math))
    return made


class Blocks(BlockProcessor):  # type: ignore[misc]
    """Indented blocks with mathematics in them, before they become code."""

    def test(self, parent: Element, block: str) -> bool:  # noqa: D102
        inside = all(line.startswith("    ") for line in block.splitlines() if line.strip())
        return inside and bool(block.strip()) and looks_like_mathematics(block)

    def run(self, parent: Element, blocks: list[str]) -> None:  # noqa: D102
        parent.append(typeset(blocks.pop(0)))


def from_latex(text: str, display: str = "inline") -> Element:
    """Return a formula written in LaTeX."""
    made = fromstring(convert(" ".join(text.split()), display=display))
    for one in made.iter():
        one.tag = one.tag.rpartition("}")[2]
        one.text = AtomicString(one.text) if one.text else None
    made.set("xmlns", MATHML)
    return polish(made)


class Directives(BlockProcessor):  # type: ignore[misc]
    """Paragraphs that begin with `.. math::`."""

    def test(self, parent: Element, block: str) -> bool:  # noqa: D102
        return block.startswith(".. math::")

    def run(self, parent: Element, blocks: list[str]) -> None:  # noqa: D102
        text = blocks.pop(0).removeprefix(".. math::")
        parent.append(element("div", from_latex(text, "block"), **{"class": "formula"}))


class Roles(InlineProcessor):  # type: ignore[misc]
    """Words in running text that are marked `:math:`."""

    def handleMatch(self, m, data):  # type: ignore[no-untyped-def]  # noqa: D102, N802
        return from_latex(m[1]), m.start(0), m.end(0)


class Indices(InlineProcessor):  # type: ignore[misc]
    """A letter or a name with an index in running text, a closed bracket with one, or a power."""

    def handleMatch(self, m, data):  # type: ignore[no-untyped-def]  # noqa: D102, N802
        starred, letter, star, index, name, place, bracketed, power = m.groups()
        made = element("span", **{"class": "m"})
        if letter or starred:
            made.append(element("i", text=letter or starred))
        if name:
            made.append(element("code" if "_" in name else "span", text=name))
        if star or starred:
            made.append(element("sup", text="∗"))
        for tag, text in (("sub", index or place or bracketed), ("sup", power)):
            if text:
                made.append(element(tag, text=text.strip("{}").replace("-", "−")))
        return made, m.start(0), m.end(0)


LETTER = r"((?:[A-Za-zα-ωΑ-Ωℓ]|[ĝḡēâṽ])['\u0304\u0302]?)"
SCRIPT = (
    r"(\{[^{}\n]{1,20}\}|(?:[A-Za-z0-9]{1,2}|max|min)(?![A-Za-z0-9_])|[+-](?=[\s,.;:)/])|\*(?!\*))"
)
INDEX = (
    r"(?:(?<![`\\*])([α-ω]|(?<!\w)w)\*(?=[\s,.;:)\]>‖⟩²ᵀ]|$)|"  # a star alone
    r"(?:(?<![A-Za-z_`\\])(?=[A-Za-zĝḡēâṽ])|(?<![`\\])(?=[α-ωΑ-Ωℓ]))"
    + LETTER
    + r"(\*)?_"
    + SCRIPT
    + r")|(?<![\w`\\])([a-z]{2,}(?:_[a-z]+)*)_(\{[^{}\n]{1,20}\}|[ijk](?!\w))"
    + r"|(?<=[)\]²³])_(\{[^{}\n]{1,20}\}|[+t](?!\w))"
    + r"|(?<=[\w)\x03])\^(\{[^{}\n]{1,20}\}|-?[0-9]+(?:\.[0-9]+)?|-?[A-Za-zα-ω](?!\w))"
)


class Formulas(Extension):  # type: ignore[misc]
    """Python-Markdown's door to all this."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: D102, N802
        md.parser.blockprocessors.register(Blocks(md.parser), "formula", 85)
        md.parser.blockprocessors.register(Directives(md.parser), "math", 86)
        md.inlinePatterns.register(Roles(":math:`([^`]+)`", md), "math", 195)
        md.inlinePatterns.register(Indices(INDEX, md), "index", 175)
