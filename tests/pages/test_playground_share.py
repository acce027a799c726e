"""The playground's addresses: what is shared is what another sees."""

from __future__ import annotations

import pytest
from playground_visit import shared

pytestmark = pytest.mark.browser
SHOWN = """() => ({
  clock: $("clock").textContent,
  time: $("time").value,
  settings: [page.raw, page.path, page.seed, [...page.off], page.drawn, page.playing],
  regret: NAMES.map(name => $(`regret-${name}`).textContent),
  pictures: ["picture", "rates", "learning", "regret"].map(id => $(id).toDataURL()),
})"""

# The step that is shown once a click has been seen to.
CLICK = "one => { one.click(); return new Promise(f => setTimeout(() => f(page.step), 50)); }"


def rested(page):
    """Return what is shown once all is computed and drawn."""
    page.wait_for_function("page.history.head > reach() && !page.stale")
    return page.evaluate(SHOWN)


def pause(page):
    page.evaluate("play(false)")


def drift(page):
    page.locator("#path-drift").locator("..").click()
    page.locator("#noise").press("ArrowRight")
    page.locator("#rule-adam button").click()
    page.wait_for_function("page.step > 40")
    page.locator("#play").click()


def scrub(page):
    page.locator("#fresh").click()
    pause(page)
    page.wait_for_function("page.history.head > 1100")
    page.locator("#time").fill("1100")


def begin(page):
    pause(page)
    page.locator("#time").fill("0")


def end(page):
    page.evaluate("show(STEPS - 3); play(true)")
    page.wait_for_function("!page.playing")


def draw(page):
    """By hand, then back in time."""
    page.locator("#path-yours").locator("..").click()
    for key in ("ArrowUp", "ArrowRight", "ArrowUp"):
        page.locator("#picture").press(key)
        page.wait_for_timeout(100)
    page.locator("#play").click()
    page.locator("#time").fill("4")


@pytest.mark.parametrize("act", [drift, scrub, begin, end, draw])
def test_an_address_restores_what_was_shared(act, page, visit):
    """To the pixel and to the step."""
    act(page)
    address, seen = shared(page), rested(page)
    other = visit.context.new_page()
    other.goto(address)
    found = rested(other)
    assert found == seen
    step = int(found["time"])
    assert address.endswith(f"step={step}")
    assert found["clock"] == f"{step} / 2000"
    assert f"at step {step} of 2000" in other.locator("#picture").get_attribute("aria-label")
    assert other.evaluate("page.playing") is False


def test_a_link_to_what_is_seen_is_copied(page, visit):
    """While it plays, too; pasted elsewhere it shows the same."""
    page.locator("#noise").press("ArrowRight")
    page.wait_for_function("page.step > 60")
    says = page.locator("#copy").evaluate("one => { one.click(); return one.textContent; }")
    assert says == "copied"
    other = visit.context.new_page()
    other.set_content("<textarea></textarea>")
    other.locator("textarea").press("Control+V")
    address = other.locator("textarea").input_value()
    other.goto(address)
    found = rested(other)
    assert address.endswith(f"#noise=1.6&step={found['time']}")
    assert int(found["time"]) >= 60
    page.bring_to_front()
    pause(page)
    page.locator("#time").fill(found["time"])
    assert rested(page) == found


def test_what_to_try_is_an_address(page):
    for link in page.locator("#tries a").all():
        link.click()
        page.wait_for_selector(f"#tries a[href='{link.get_attribute('href')}'][aria-current=true]")
        told = dict(word.split("=") for word in link.get_attribute("href")[1:].split("&") if word)
        now = page.evaluate("({...page.raw, ...settings()})")
        for name, value in told.items():
            wanted = value if name == "path" else pytest.approx(float(value), rel=0.02)
            assert now[name] == wanted


def test_what_is_tried_again_begins_again(page):
    """Also where its address is the one that there is already."""
    for say in ("spiral", "move it yourself", "jumps"):
        for _ in range(2):
            page.wait_for_function("page.step > 40")
            assert page.locator("#tries a", has_text=say).evaluate(CLICK) < 20
    assert page.evaluate("page.playing")


def test_a_drag_asks_for_few_addresses(page):
    """A browser may refuse more than a hundred in half a minute."""
    page.evaluate("""
      window.asked = 0;
      const plain = history.replaceState.bind(history);
      history.replaceState = (...given) => { asked++; plain(...given); };
      play(false);
      for (let step = 0; step < 300; step++) show(step);
    """)
    assert shared(page).endswith("step=299")
    assert page.evaluate("asked") <= 2


@pytest.mark.parametrize(
    "words",
    [
        "noise=much&batch=-3&dim=7",
        "path=nowhere&seed=x&step=1e9",
        "path=yours&drawn=0.a_b..c&off=all",
    ],
)
def test_an_address_that_says_nothing_does_no_harm(words, playground, visit):
    page = visit.page
    page.goto(f"{playground.as_uri()}#{words}")
    page.wait_for_function("page.history.head > 0")
    assert page.evaluate("page.path in PATHS && page.step < STEPS")
    assert page.evaluate("Object.values(settings()).every(value => value === value)")
    assert visit.errors == []
