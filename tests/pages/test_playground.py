"""The playground in Chromium: its numbers are the library's, and its page does what it says."""

from __future__ import annotations

import numpy as np
import pytest
from playground_twin import LEARNERS, Draws, run
from playground_visit import shared

import driftrate as dr

pytestmark = pytest.mark.browser
USUAL = {"path": "jumps", "speed": 1.0, "noise": 1.0, "batch": 16, "dim": 2, "rate": 0.1,
         "adam": 0.05, "seed": 3, "drawn": []}  # fmt: skip
PLAY = """([settings, names, steps, draws]) => {
  const given = draws && ((step, seed, batch) => {
    for (let half = 0; half < 2; half++) {
      batch.root[half].set(draws.root[step][seed][half].flat());
      batch.noise[half].set(draws.noise[step][seed][half]);
      batch.rest[half] = draws.rest[step][seed][half];
    }
  });
  const world = new World(settings, names, given);
  const rates = names.map(() => []), weights = names.map(() => []), regret = names.map(() => []);
  for (let step = 0; step < steps; step++) {
    world.learners.forEach((one, k) => {
      if (!draws) return;
      weights[k].push(Array.from({ length: world.seeds }, (_, seed) => {
        const at = seed * one.size + one.home;
        return Array.from(one.state.subarray(at, at + one.dim));
      }));
    });
    world.advance(() => {});
    world.learners.forEach((one, k) => {
      rates[k].push(Array.from(one.rates)); regret[k].push(Array.from(one.regret));
    });
  }
  return { rates, weights, regret, path: world.path && Array.from(world.path) };
}"""


CASES = {
    "jumps": {},
    "runaway": {"path": "runaway", "noise": 0.3},
    "more weights than rows": {"dim": 8, "batch": 4, "noise": 0.5},
}


@pytest.fixture(scope="module", params=CASES)
def played(engine, request):
    """A thousand steps of all rules in the page, with the draws and the path that they saw."""
    settings = USUAL | CASES[request.param] | {"seeds": 2}
    draws = Draws.make(1000, 2, settings["batch"], settings["dim"])
    found = engine.evaluate(PLAY, [settings, list(LEARNERS), 1000, draws.listed()])
    flight = {"start": engine.evaluate("START"), "flight": 0.02 * settings["speed"]}
    path = found["path"] and np.reshape(found["path"], (-1, 2))
    ours = zip(found["rates"], found["weights"], strict=True)
    return dict(zip(LEARNERS, ours, strict=True)), (settings | flight, draws, path)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_same_draws_give_the_library_s_numbers(name, played):
    """Rates and weights agree within 1e-9 over 1,000 steps in which each follows its own rate."""
    ours, world = played
    rates, weights = run(name, *world)
    np.testing.assert_allclose(ours[name][0], rates, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours[name][1], weights, rtol=1e-9, atol=1e-9)
    assert np.ptp(weights) > 0.1


def test_all_have_a_rate_where_nothing_is_left_to_learn(engine):
    """Without noise gradients become 0 to the bit."""
    settings = USUAL | {"noise": 0, "batch": 256, "seeds": 2}
    rates = engine.evaluate(PLAY, [settings, list(LEARNERS), 1000, None])["rates"]
    for name, found in zip(LEARNERS, rates, strict=True):
        assert np.isfinite(np.array(found, dtype=float)).all(), name


@pytest.mark.parametrize(("batch", "dim"), [(16, 2), (4, 8)])
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("constant", dr.ConstantRate(0.1)),
        ("measured", dr.MeasuredRate()),
        ("hedged", dr.HedgedSGD()),
    ],
)
def test_the_page_s_world_has_the_library_s_law(name, rule, batch, dim, engine):
    """Regret and rates are those of `dr.simulate`, within four standard errors."""
    seeds, steps, at = 200, 300, np.array([1, 5, 25, 100, 260, 300]) - 1
    settings = USUAL | {"batch": batch, "dim": dim, "seeds": seeds}
    found = engine.evaluate(PLAY, [settings, [name], steps, None])
    path = np.zeros((steps, dim))
    path[:, :2] = np.reshape(found["path"], (-1, 2))[:steps]
    stream = dr.streams.LinearStream(path, batch_size=batch, noise_std=settings["noise"])
    known = dr.simulate(stream, rule, seeds=seeds, seed=1)
    for ours, theirs in (("regret", known.regret), ("rates", known.rates)):
        one = np.array(found[ours][0])[at]
        other = np.asarray(theirs).T[at]
        error = np.sqrt((one.var(axis=1) + other.var(axis=1)) / seeds)
        gap = np.abs(one.mean(axis=1) - other.mean(axis=1))
        assert (gap <= 4 * error + 1e-12).all(), (ours, gap, error)


class TestPage:
    def test_it_draws_and_plays(self, page, visit, tmp_path):
        for canvas in ("picture", "rates", "learning", "regret"):
            assert page.evaluate(COLOURS, canvas) > 20, canvas
        before = page.evaluate("page.step")
        page.wait_for_function(f"page.step > {before} + 20")
        assert visit.keep("playground", tmp_path).stat().st_size > 20_000
        for name in ("measured", "hedged", "pursuit", "linear", "constant", "inverse", "adam"):
            assert float(page.locator(f"#regret-{name}").inner_text()) > 0

    @pytest.mark.parametrize(
        ("slider", "setting", "keys", "says"),
        [
            ("noise", "noise", "Home", "σ = 0"),
            ("batch", "batch", "End", "256 rows"),
            ("dim", "dim", "ArrowRight", "8"),
            ("speed", "speed", "ArrowLeft", "0.95 a jump"),
            ("rate", "rate", "ArrowRight", "0.11"),
            ("adam", "adam", "End", "1"),
        ],
    )
    def test_a_slider_changes_what_it_says(self, page, slider, setting, keys, says):
        page.locator(f"#{slider}").focus()
        outline = f"getComputedStyle(document.getElementById('{slider}')).outlineStyle"
        page.keyboard.press(keys)
        assert page.evaluate(outline) == "solid"
        assert page.locator(f"#say-{slider}").inner_text() == says
        assert page.locator(f"#{slider}").get_attribute("aria-valuetext") == says
        told = page.evaluate("page.history.world.settings")[setting]
        assert told == page.evaluate(f"settings().{setting}")
        assert told != USUAL[setting] or setting == "noise"
        assert f"{slider}=" in shared(page)

    def test_noise_and_rates_change_the_regret(self, page):
        page.evaluate("play(false)")

        def regret(name):
            page.wait_for_function("page.history.head === STEPS")
            place = page.evaluate(f"NAMES.indexOf('{name}')")
            return page.evaluate(f"page.history.regret[{place}][STEPS - 1]")

        before = {name: regret(name) for name in ("constant", "measured", "linear")}
        assert before["linear"] < before["measured"] < before["constant"]
        page.locator("#noise").focus()
        page.keyboard.press("End")
        assert all(regret(name) > 1.5 * before[name] for name in before)
        page.locator("#noise").press("Home")
        page.locator("#rate").press("End")
        # A rate of 2 is beyond what B = 16 allows.
        page.wait_for_function("page.history.head === STEPS")
        assert regret("constant") is None or not regret("constant") < 1e6

    def test_space_plays_and_pauses(self, page):
        play = page.locator("#play")
        assert play.get_attribute("aria-label") == "Pause"
        page.locator("#noise").focus()
        page.keyboard.press(" ")
        assert play.get_attribute("aria-label") == "Play"
        step = page.evaluate("page.step")
        page.wait_for_timeout(150)
        assert page.evaluate("page.step") == step
        play.focus()
        page.keyboard.press(" ")
        assert play.get_attribute("aria-label") == "Pause"
        page.wait_for_function(f"page.step > {step}")

    def test_everything_has_a_name(self, page):
        nameless = """[...document.querySelectorAll("input, button, canvas")].filter(one =>
          !(one.ariaLabel || one.textContent.trim() || one.closest("label")?.textContent.trim())
        ).map(one => one.id)"""
        assert page.evaluate(nameless) == []
        assert page.locator("#paths legend").count() == 1

    def test_a_rate_is_switched(self, page):
        page.wait_for_function("page.history.head === STEPS")
        page.evaluate("show(STEPS - 1)")
        page.wait_for_timeout(100)
        assert page.evaluate(INKED, ["rates", "inverse"]) > 50
        page.locator("#rule-inverse button").click()
        page.wait_for_timeout(100)
        assert page.evaluate(INKED, ["rates", "inverse"]) == 0
        assert page.evaluate(INKED, ["rates", "measured"]) > 50
        assert "off=inverse" in shared(page)

    def test_a_chart_is_a_way_to_a_step(self, page):
        page.evaluate("play(false)")
        page.wait_for_function("page.history.head === STEPS")
        canvas = page.locator("#regret")
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] / 2, "y": 40})
        step = page.evaluate("page.step")
        assert 850 < step < 1000
        page.wait_for_function(f"$('time').ariaValueText === 'step {step}'")

    def test_a_target_moved_by_hand_is_followed_and_shared(self, page, visit):
        page.locator("#path-yours").locator("..").click()
        box = page.locator("#picture").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        for place in range(1, 9):
            page.mouse.move(x + 8 * place, y - 6 * place)
            page.wait_for_timeout(60)
        page.mouse.up()
        drawn = page.evaluate("page.drawn")
        assert len(drawn) >= 4
        assert drawn[-1][1] > 0.1
        assert drawn[-1][2] > 0.1
        page.locator("#picture").press("ArrowUp")
        page.wait_for_timeout(150)
        assert page.evaluate("page.drawn.length") > len(drawn)
        page.locator("#play").click()
        kept = page.evaluate("[unpacked(packed(page.drawn)), page.drawn]")
        assert kept[0] == kept[1]
        other = visit.context.new_page()
        other.goto(shared(page))
        assert other.evaluate("page.drawn") == kept[1]
        now = page.evaluate("Math.floor(page.step)")
        other.wait_for_function(f"page.history.head > {now}")
        paths = [one.evaluate("Array.from(page.history.world.path)") for one in (page, other)]
        assert paths[0] == pytest.approx(paths[1], abs=0.011)

    def test_only_the_first_button_draws(self, page):
        page.locator("#path-yours").locator("..").click()
        page.locator("#picture").click(button="right", position={"x": 30, "y": 60})
        assert page.evaluate("[page.pointer, page.drawn.length]") == [None, 0]
        page.locator("#picture").click(position={"x": 30, "y": 60}, delay=150)
        assert page.evaluate("page.drawn.length") > 0

    @pytest.mark.parametrize("drawn", ["", "drawn=0.1o.0_8c.28.28"])
    def test_what_is_drawn_over_is_computed_anew(self, page, visit, drawn):
        """Back in time and by hand elsewhere: the numbers are those of a fresh visit."""
        page.evaluate(f"location.hash = 'path=yours&{drawn}'")
        points = 2 if drawn else 0
        page.wait_for_function(f"page.path === 'yours' && page.drawn.length === {points}")
        page.evaluate("play(false); page.history.compute(STEPS, Infinity); show(200)")
        before = page.evaluate("page.history.regret.map(column => column[230])")
        for _ in range(2):
            page.locator("#picture").press("ArrowUp")
        page.wait_for_function("page.step > 250")
        page.evaluate("play(false)")
        found = page.evaluate("page.history.regret.map(column => column[230])")
        assert found != before
        other = visit.context.new_page()
        other.goto(shared(page))
        other.wait_for_function("page.history.head > 250")
        # An address has a path in hundredths.
        wanted = other.evaluate("page.history.regret.map(column => column[230])")
        assert found == pytest.approx(wanted, rel=1e-6)

    def test_a_path_that_is_drawn_at_the_end_begins_again(self, page):
        page.evaluate("location.hash = 'path=yours&step=2000'")
        page.wait_for_function("page.step === STEPS - 1")
        page.evaluate("page.history.compute(STEPS, Infinity)")
        page.locator("#picture").press("ArrowUp")
        assert page.evaluate("page.step") < 100
        assert page.evaluate("page.drawn.length") == 2
        assert page.evaluate("page.history.head < STEPS")


COLOURS = """id => {
  const canvas = document.getElementById(id);
  const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(image.data.buffer)).size;
}"""
INKED = """([id, name]) => {
  const canvas = document.getElementById(id), probe = document.createElement("canvas");
  const pen = probe.getContext("2d");
  pen.fillStyle = page.colours[name];
  pen.fillRect(0, 0, 1, 1);
  const [colour] = new Uint32Array(pen.getImageData(0, 0, 1, 1).data.buffer);
  const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Uint32Array(image.data.buffer).filter(pixel => pixel === colour).length;
}"""


def opened(chromium, playground, **options):
    context = chromium.new_context(viewport={"width": 390, "height": 844}, **options)
    page = context.new_page()
    page.goto(playground.as_uri())
    page.wait_for_function("page.history.head > 50")
    return page


def test_a_finger_moves_the_target(chromium, playground):
    page = opened(chromium, playground, has_touch=True, is_mobile=True)
    page.locator("#path-yours").locator("..").tap()
    page.locator("#picture").scroll_into_view_if_needed()
    box = page.locator("#picture").bounding_box()
    assert (
        page.evaluate("getComputedStyle(document.getElementById('picture')).touchAction") == "none"
    )
    touch = page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for kind, place in [
        ("touchStart", 0),
        *(("touchMove", k) for k in range(1, 8)),
        ("touchEnd", None),
    ]:
        points = [] if place is None else [{"x": x - 9 * place, "y": y + 5 * place}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        page.wait_for_timeout(60)
    drawn = page.evaluate("page.drawn")
    assert len(drawn) >= 4
    assert drawn[-1][1] < -0.1
    assert page.evaluate("page.pointer") is None
    page.context.close()


def test_less_motion_shows_the_end_at_rest(chromium, playground):
    page = opened(chromium, playground, reduced_motion="reduce")
    page.wait_for_function("page.history.head === STEPS")
    assert page.evaluate("[page.playing, page.step === STEPS - 1]") == [False, True]
    page.wait_for_timeout(100)
    assert page.evaluate(COLOURS, "regret") > 20
    page.context.close()


def test_the_dark_is_dark(chromium, playground):
    shades = {}
    for scheme in ("light", "dark"):
        page = opened(chromium, playground, color_scheme=scheme)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades[scheme] = sum(int(part) for part in colour[4:-1].split(","))
        style = "getComputedStyle(document.body).color"
        assert page.evaluate(f"page.colours.ink === {style}")
        page.context.close()
    assert shades["dark"] < 150
    assert shades["light"] > 600
