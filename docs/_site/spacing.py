"""What browsers leave out of the rules by which mathematics is spaced.

They take every sign for one between two terms and keep its blanks in an index. A minus before a
single term stands close to it, and in indices and powers nothing is apart.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

RELATIONS = set("=≠←≤≥∼∝∈→≈<>,;:")
SIGNS = set("+−±-")
OPENS = set("([{⟨⌈⌊‖|")
SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
FUNCTIONS = {"log", "ln", "exp", "sin", "cos", "tr", "max", "min", "sup", "clip"}
CLOSE = {"lspace": "0", "rspace": "0"}
THIN = "0.1667em"


def ends(made: Element | None) -> str:
    """Return the sign that a thing is, or nothing if it is no sign that opens or relates."""
    return (made.text or "") if made is not None and made.tag == "mo" else ""


def fenced(made: Element | None) -> bool:
    """Return whether a thing is, or begins with, a bracket or another sign."""
    return made is not None and bool(ends(made) or (len(made) > 0 and ends(made[0])))


def set_row(whole: Element) -> None:
    """Space what stands in one row, between the blanks that its text sets itself."""
    made = [one for one in whole if one.tag != "mspace"]
    indented = len(whole) > 0 and whole[0].tag == "mspace"  # goes on from the row above
    bars = [one for one in made if ends(one) in set("|‖")]
    if len(bars) % 2 == 0:
        for place, one in enumerate(bars):
            one.attrib |= {"form": "postfix" if place % 2 else "prefix", **CLOSE}
    for before, one, after in zip([None, *made], made, [*made[1:], None], strict=False):
        text = ends(one)
        if one.text in {"~", "∼"}:  # a letter, to the reader of LaTeX
            one.tag, one.text = "mo", "∼"
            one.attrib |= {"lspace": "0.28em", "rspace": "0.28em"}
        elif text == "/":
            one.attrib |= {"lspace": "0.1em", "rspace": "0.1em"}
        elif text in SIGNS:
            closed = before is not None and before.get("form") == "postfix"
            alone = (before is None and not indented) or (
                ends(before) in RELATIONS | OPENS | SIGNS and not closed
            )
            one.attrib |= {"form": "prefix", **CLOSE} if alone else {"form": "infix"}
        elif one.tag == "mi" and one.text in FUNCTIONS and after is not None:
            one.tag = "mo"
            one.set("form", "prefix")
            one.set("lspace", "0" if before is None or ends(before) else THIN)
            one.set("rspace", "0" if fenced(after) else THIN)


def polish(made: Element) -> Element:
    """Space a formula, in place, and return it."""
    for one in made.iter():
        if one.tag in {"math", "mrow", "msqrt", "mtd", "mstyle"}:
            set_row(one)
    for one in made.iter():
        if one.tag in SCRIPTS:
            for script in list(one)[1:]:
                for sign in script.iter("mo"):
                    sign.attrib |= CLOSE
    return made
