"""What is seen of the playground: nothing is cut off, nothing leaps, nothing leaves its chart."""

from __future__ import annotations

from itertools import pairwise

import pytest
from playground_visit import shown

pytestmark = pytest.mark.browser
CUT = """() => {
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, own = node.parentElement;
    if (!node.data.trim() || own.closest("nav, script") || !own.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const text = range.getBoundingClientRect();
    for (let box = own; box; box = box.parentElement) {
      if (getComputedStyle(box).display.startsWith("inline")) continue;
      const { left, right } = box.getBoundingClientRect();
      if (text.left < left - 1 || text.right > right + 1) found.push(node.data.trim());
    }
  }
  return found;
}"""
WIDTHS = (1280, 1186, 1121, 1000, 720, 390, 356, 320)
# How far up its chart the lowest and the highest value lie, of those above 0.
HEIGHTS = """id => {
  const plain = chart;
  let low = Infinity, high = 0;
  chart = (canvas, lines, step, ticks, scale, ...rest) => {
    for (const { values } of canvas.id === id ? lines : []) {
      for (let t = 0; t <= step; t++) {
        if (values[t] > 0) low = Math.min(low, scale(values[t]));
        if (values[t] > 0) high = Math.max(high, scale(values[t]));
      }
    }
    return plain(canvas, lines, step, ticks, scale, ...rest);
  };
  draw();
  chart = plain;
  return [low, high];
}"""
# From the highest to the lowest, where words are said beside the lines of the rate of learning.
WORDED = """() => {
  const found = [], plain = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.canvas.id === "learning" && LEARNING.some(one => one.words === text)) found.push(y);
    plain.call(this, text, x, y);
  };
  draw();
  CanvasRenderingContext2D.prototype.fillText = plain;
  return found;
}"""
# How high the line of Algorithm 1 is drawn, and its least and largest value between two jumps.
PEAKS = """() => {
  const drawn = [], wanted = [], plain = chart, pen = CanvasRenderingContext2D.prototype;
  const { lineTo, moveTo } = pen;
  const noted = own => function (x, y) {
    if (this.canvas.id === "rates") drawn.push(y);
    own.call(this, x, y);
  };
  [pen.lineTo, pen.moveTo] = [noted(lineTo), noted(moveTo)];
  chart = (canvas, lines, step, ticks, scale, ...rest) => {
    if (canvas.id === "rates") {
      const height = value => 6 + (canvas.clientHeight - 26) * (1 - scale(value));
      for (let from = 0; from < 2000; from += 250) {
        const part = lines[0].values.slice(from, from + 250);
        wanted.push(height(Math.min(...part)), height(Math.max(...part)));
      }
    }
    return plain(canvas, lines, step, ticks, scale, ...rest);
  };
  draw();
  [chart, pen.lineTo, pen.moveTo] = [plain, lineTo, moveTo];
  return [drawn, wanted];
}"""
PLACES = """[...document.querySelectorAll("canvas, fieldset, input, output, .rule")].map(one => {
  const { x, y, height } = one.getBoundingClientRect();
  return [one.id || one.className || one.tagName, x + scrollX, y + scrollY, height].join(" ");
}).join()"""


def test_no_word_is_cut_off(engine):
    """At each width, with the longest of what a label may say."""
    shown(engine, "path=runaway&rate=0.126&dim=128&noise=0.1&step=1")
    assert engine.locator("#seen").inner_text().startswith("as seen from the target")
    for width in WIDTHS:
        engine.set_viewport_size({"width": width, "height": 900})
        assert engine.evaluate("document.documentElement.scrollWidth") <= width
        assert engine.evaluate(CUT) == [], width


@pytest.mark.parametrize("words", ["", "path=rest&noise=0&", "path=runaway&", "rate=1.26&"])
def test_no_regret_lies_below_its_chart(engine, words):
    shown(engine, f"{words}step=2000")
    assert 0 < engine.evaluate(HEIGHTS, "regret")[0] < 0.1


@pytest.mark.parametrize("words", ["batch=2&dim=32&", "adam=1&", "rate=2&batch=2&"])
def test_no_rate_lies_beside_its_chart(engine, words):
    shown(engine, f"{words}step=2000")
    low, high = engine.evaluate(HEIGHTS, "rates")
    assert 0 < low < high < 1


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_leaps_when_the_target_changes(width, engine):
    """Where everything is on the page is the same for all paths, also while they are played."""
    engine.set_viewport_size({"width": width, "height": 900})
    places = {}
    for path in engine.evaluate("Object.keys(PATHS)"):
        for step in (0, 700):
            shown(engine, f"path={path}&step={step}")
            places[path, step] = engine.evaluate(PLACES)
    assert len(set(places.values())) == 1, places


@pytest.mark.parametrize("words", ["", "rate=2&batch=2&", "dim=32&rate=0.501&"])
def test_no_words_of_a_chart_lie_on_others(words, engine):
    shown(engine, f"{words}step=2000")
    heights = engine.evaluate(WORDED)
    assert heights
    assert all(low - high > 12 for high, low in pairwise(heights))


def test_all_rates_may_be_off(engine):
    names = engine.evaluate("NAMES.join()")
    shown(engine, f"off={names}&step=300")
    assert engine.locator("#picture").get_attribute("aria-label") == "The chase at step 300 of 2000"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_peak_of_a_rate_is_lost(width, engine):
    """Between a jump and the next one the line goes as far up and down as the rate does."""
    engine.set_viewport_size({"width": width, "height": 900})
    shown(engine, "step=2000&off=measured,hedged,pursuit,constant,inverse,adam")
    drawn, wanted = engine.evaluate(PEAKS)
    assert len(wanted) == 16
    assert [min(abs(one - other) for other in drawn) < 0.01 for one in wanted] == [True] * 16
