"""Formulas in Unicode become MathML: nothing is lost, and what it says is what was written."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import markdown
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs/_site"))  # what it imports stands beside it
SPEC = importlib.util.spec_from_file_location("formulas", ROOT / "docs/_site/formulas.py")
formulas = importlib.util.module_from_spec(SPEC)
sys.modules["formulas"] = formulas  # dataclasses look it up there
SPEC.loader.exec_module(formulas)


def texts():
    """Yield every page, and every docstring of the library."""
    for path in sorted((ROOT / "docs").glob("*.md")):
        yield path.name, re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                yield path.name, re.split(r"\n(?:Args|Returns|Example|Attributes):\n", text)[0]


def blocks():
    for name, text in texts():
        for block in re.split(r"\n\s*\n", text):
            lines = [line for line in block.splitlines() if line.strip()]
            indented = lines and all(line.startswith("    ") for line in lines)
            if indented and formulas.looks_like_mathematics(block):
                yield pytest.param(block, id=f"{name}: {lines[0].strip()[:40]}")


def letters(text):
    """Return letters and digits alone, sorted: indices and powers may change places."""
    plain = unicodedata.normalize("NFKC", text.replace("ℓ", "l").replace("∑", "Σ"))
    return sorted(one for one in unicodedata.normalize("NFD", plain) if one.isalnum())


def said(line):
    return ElementTree.tostring(formulas.typeset(line), encoding="unicode")


@pytest.mark.parametrize("block", list(blocks()))
def test_no_letter_of_a_formula_is_lost(block):
    assert letters("".join(formulas.typeset(block).itertext())) == letters(block)


def test_there_are_formulas():
    assert len(list(blocks())) > 50


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("(1 - η)² v", ")</mo></mrow><mn>2</mn></msup><mi>v</mi>"),
        ("θ*_{t+1}", "<msubsup><mi>θ</mi><mrow><mi>t</mi>"),
        ("√(A v + S)", "<msqrt><mrow><mi>A</mi><mi>v</mi>"),
        ("√v̂_i", "<msqrt><msub><mover accent="),
        ("η = 2 √b / (L + 1)", "<mfrac><mrow><mn>2</mn><msqrt><mi>b</mi></msqrt></mrow><mrow>"),
        ("Σ_{s ≤ t} x", "<munder><mo movablelimits="),
        ("nG x", "<mrow><mi>n</mi><mi>G</mi></mrow>"),
        ("u i ≠ j", "<mo stretchy="),
        ("a / E‖g_t‖²,", "<mrow><mi>E</mi><msup><mrow><mo form="),
        ("Σ_s b m / Σ_s b.", "</munder><mi>b</mi></mrow></mfrac><mo stretchy"),
        ("(2 a / 3 b) c", "<mrow><mn>3</mn><mi>b</mi></mrow></mfrac>"),
        ("x / y where", "<mi>y</mi></mfrac><mspace"),
        ("x / log y", "</mo><mi>y</mi></mrow></mfrac>"),
        ("p_jk", "<mrow><mi>j</mi><mi>k</mi></mrow>"),
        ("grad_sq_{t-1}", '<mtext class="code">grad_sq</mtext><mrow>'),
    ],
)
def test_a_formula_says_what_was_written(line, wanted):
    assert wanted in said(line)


@pytest.mark.parametrize(
    ("line", "closely"),
    [
        ("a = - b", ["−"]),
        ("exp(-h)", ["−"]),
        ("a - b", []),
        ("a\n  - b", []),
        ("x_{t-1}", ["−"]),
        ("a ± 3", []),
    ],
)
def test_a_sign_stands_close_to_a_single_term_and_in_an_index(line, closely):
    signs = [one for one in formulas.typeset(line).iter("mo") if one.text in formulas.SIGNS]
    assert [one.text for one in signs if one.get("rspace") == "0"] == closely


def test_what_no_rule_sets_fails_the_build():
    with pytest.raises(formulas.Unknown, match="U\\+2603"):
        formulas.typeset("η ☃")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("γ_{t-1} is", '<p><span class="m"><i>γ</i><sub>t−1</sub></span> is</p>'),
        ("θ*_t - θ*_{t+1}", "<i>θ</i><sup>∗</sup><sub>t</sub>"),
        ("**a_t = v_t/ℓ_t**, so", "<strong><span"),
        ("10^-18", '10<span class="m"><sup>−18</sup></span>'),
        ("ε^0.48 ± 1", 'ε<span class="m"><sup>0.48</sup></span> '),
        ("1/t^2.", 't<span class="m"><sup>2</sup></span>.'),
        ("for ṽ_0 ≤ b", "<i>ṽ</i><sub>0</sub>"),
        ("(x)_+ a", "<sub>+</sub>"),
        ("−Lη_t² is", 'L<span class="m"><i>η</i><sub>t</sub></span>² is'),
        ("D²_{t+1}", "<sub>t+1</sub>"),
        (":math:`s_t`", '<math display="inline"'),
        (".. math:: a_t\n    + 1", '<math display="block"'),
        ("*one* word", "<em>one</em> word"),
        ("H(w - w*) + a w* that", "<i>w</i><sup>∗</sup></span> that"),
        ("a *law* and *w*", "<em>law</em> and <em>w</em>"),
        ("√grad_sq_{t-1}: it", '√<span class="m"><code>grad_sq</code><sub>t−1</sub></span>:'),
        ("rate · base_i/lr_i", "<span>lr</span><sub>i</sub>"),
        ("power_t 0", "<p>power_t 0</p>"),
        ("max_rate and `x_t`", "max_rate and <code>x_t</code>"),
    ],
)
def test_indices_in_running_text(text, wanted):
    assert wanted in markdown.markdown(text, extensions=[formulas.Formulas()])


def test_a_command_stays_code():
    text = "    python benchmarks/race.py --methods adam@lr=0.1"
    assert "<pre><code>" in markdown.markdown(text, extensions=[formulas.Formulas()])
