"""The table: ranks, hindsight, what is luck and what is not, and sentences that say so."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from driftrate.race.advice import advise
from driftrate.race.cell import Cell, without_result
from driftrate.race.leaderboard import Leaderboard
from driftrate.race.markdown import Singles, markdown
from driftrate.race.page import render_race
from driftrate.race.significance import block_p_value, compare, holm
from driftrate.race.words import not_played, overall, verdict

STEPS = 200


def result(loss=1.0, status="ok", noise=0.0, seed=0, regret=None):
    if status != "ok":
        return without_result(status, "it went wrong")
    rng = np.random.default_rng(seed)
    losses = loss + noise * rng.standard_normal(STEPS)
    losses += loss - losses.mean()
    steps = np.arange(1, STEPS + 1)
    return {
        **without_result("ok", ""),
        "loss": loss,
        "error": loss / 2,
        "regret": regret,
        "steps": STEPS,
        "seconds_per_step": 1e-4,
        "curve_steps": steps.tolist(),
        "loss_curve": (np.cumsum(losses) / steps).tolist(),
        "rate_curve": (1.0 / steps).tolist(),
    }


def cell(stream, method, setting="default", seed=0):
    return Cell(stream, method, setting, seed, "f", model="linear")


WHO = {
    name: SimpleNamespace(
        name=name, family="toy", first_order=name != "filter", ours=ours, by_row=name == "adam"
    )
    for name, ours in [("sgd", 0), ("adam", 0), ("filter", 0), ("HedgedSGD", 1)]
}


def board(results):
    streams = {cell.stream: cell.stream for cell in results}
    return Leaderboard(results, WHO, streams)


def rows(results, column="default"):
    return {row.method: row for row in board(results).of("a", column)}


class TestRows:
    def test_ranks_by_loss_with_shared_places(self):
        losses = {"sgd": 2.0, "adam": 1.0, "filter": 0.5, "HedgedSGD": 1.0}
        found = rows({cell("a", name): result(loss) for name, loss in losses.items()})
        assert {name: row.rank for name, row in found.items()} == {
            "filter": 1.0, "adam": 2.5, "HedgedSGD": 2.5, "sgd": 4.0,
        }  # fmt: skip
        assert {name: row.rank_first_order for name, row in found.items()} == {
            "filter": None, "adam": 1.5, "HedgedSGD": 1.5, "sgd": 3.0,
        }  # fmt: skip

    def test_what_was_not_played_has_no_rank(self):
        """Not even by the seeds that were: a seed less is another race."""
        results = {
            cell("a", "sgd"): result(0.2),
            cell("a", "adam"): result(0.1),
            cell("a", "adam", seed=1): result(status="not played"),
            cell("b", "adam"): result(0.1),
        }
        whole = board(results)
        assert [row.method for row in whole.of("a")] == ["sgd"]
        assert [(row.stream, row.method, row.rank) for row in whole.unplayed] == [
            ("a", "adam", None)
        ]
        assert whole.unplayed[0].message == "it went wrong"
        assert {one.method: one.streams for one in whole.placings()} == {"sgd": 1, "adam": 1}
        del results[cell("b", "adam")], results[cell("a", "sgd")]
        assert board(results).streams == []

    def test_what_was_not_played_is_said_once_for_each_cause(self):
        left = [cell("a", "adam"), cell("a", "sgd", '{"lr":1.0}'), cell("a", "sgd")]
        found = {one: result(status="not played") for one in left}
        found[cell("b", "sgd")] = {**result(status="not played"), "message": "no memory"}
        assert not_played(board(found).unplayed) == [
            f"Not played on {stream}, and without a rank there: {names} ({why}); the same command "
            "plays what is missing."
            for stream, names, why in [
                ("a", "adam, sgd", "it went wrong"),
                ("b", "sgd", "no memory"),
            ]
        ]

    @pytest.mark.parametrize("status", ["failed", "diverged", "timeout"])
    def test_one_bad_seed_is_a_marked_row_in_the_last_place(self, status):
        found = rows(
            {
                cell("a", "sgd", seed=0): result(0.1),
                cell("a", "sgd", seed=1): result(status=status),
                cell("a", "adam", seed=0): result(9.0),
                cell("a", "adam", seed=1): result(9.0),
            }
        )
        assert (found["sgd"].status, found["sgd"].message) == (status, "it went wrong")
        assert (found["sgd"].rank, found["sgd"].loss) == (2.0, None)
        assert found["adam"].rank == 1.0

    def test_mean_and_error_bar_over_seeds(self):
        found = rows({cell("a", "sgd", seed=k): result(1.0 + k) for k in range(3)})["sgd"]
        assert (found.seeds, found.loss) == (3, 2.0)
        assert found.loss_error == pytest.approx(1 / math.sqrt(3))
        assert rows({cell("a", "sgd"): result(1.0)})["sgd"].loss_error is None

    def test_best_of_the_grid_in_hindsight(self):
        results = {
            cell("a", "sgd"): result(3.0),
            cell("a", "sgd", '{"lr":0.1}'): result(1.0),
            cell("a", "sgd", '{"lr":1.0}'): result(status="diverged"),
            cell("a", "adam"): result(2.0),
            cell("a", "adam", '{"lr":0.1}'): result(2.5),
        }
        default, best = rows(results), rows(results, "best")
        assert {name: row.rank for name, row in default.items()} == {"adam": 1.0, "sgd": 2.0}
        assert {name: row.rank for name, row in best.items()} == {"sgd": 1.0, "adam": 2.0}
        assert (best["sgd"].setting, best["adam"].setting) == ('{"lr":0.1}', "default")
        grid = [row for row in board(results).rows if row.column == "grid"]
        assert len(grid) == 2
        assert all(row.rank is None for row in grid)

    def test_hindsight_best_constant_rate(self):
        results = {}
        for stream, mine, best in [("a", 1.0, 2.0), ("b", 2.0, 1.0), ("c", 1.0, 4.0)]:
            results[cell(stream, "HedgedSGD")] = result(mine)
            results[cell(stream, "sgd")] = result(10.0)
            results[cell(stream, "sgd", '{"lr":0.1}')] = result(best)
        wins = board(results).against_constant("HedgedSGD")
        assert (wins.won, wins.streams) == (2, 3)
        assert wins.ratio == pytest.approx((0.5 * 2 * 0.25) ** (1 / 3))

    def test_a_method_that_sits_streams_out_is_not_compared(self):
        results = {cell(s, m): result(1.0) for s in "abc" for m in ("sgd", "adam", "HedgedSGD")}
        results[cell("a", "filter")] = result(0.5)
        placings = {one.method: one for one in board(results).placings()}
        assert (placings["filter"].streams, placings["filter"].tied) == (1, None)
        assert placings["sgd"].tied is not None


class TestOverStreams:
    def test_critical_difference_is_the_published_one(self):
        """Demšar (2006), Table 5: q of four classifiers at level 0.05 is 2.569."""
        rng = np.random.default_rng(0)
        ranks = np.array([rng.permutation(4) + 1.0 for _ in range(5)])
        table = {f"m{k}": ranks[:, k].tolist() for k in range(4)}
        expected = 2.569 * math.sqrt(4 * 5 / (6 * 5))
        assert compare(table, table).critical_difference == pytest.approx(expected, rel=1e-3)

    def test_tells_a_clear_leader(self):
        table = {f"m{k}": [float(k + 1)] * 12 for k in range(10)}
        found = compare(table, table)
        assert found.leader == "m0"
        assert found.tied == {"m0"}
        assert "Wilcoxon" in found.test

    def test_does_not_see_what_is_not_there(self):
        """At level 0.05 a leader among equals is set apart from everyone in few of 200 races."""
        rng = np.random.default_rng(1)
        wrong = 0
        for _ in range(200):
            ranks = np.argsort(np.argsort(rng.random((6, 8)), axis=1), axis=1) + 1.0
            table = {f"m{k}": ranks[:, k].tolist() for k in range(8)}
            wrong += len(compare(table, table).tied) < 8
        # 200 trials at 0.05: 10 expected, 3 standard deviations above are 19.
        assert wrong <= 19

    def test_holm_stops_at_the_first_that_fails(self):
        """Both p-values are 4/128: over 0.05/2 for the first, so the second is not looked at."""
        losses = {
            "best": [1.0] * 7,
            "one": [0.99, 2, 3, 4, 5, 6, 7],
            "two": [2, 0.99, 4, 5, 6, 7, 8],
        }
        ranks = {
            "best": [2, 2, 1, 1, 1, 1, 1],
            "one": [1, 3, 2, 2, 2, 2, 2],
            "two": [3, 1, *[3] * 5],
        }
        assert compare(ranks, losses).tied == {"best", "one", "two"}
        worse = {**losses, "two": [2.0, 3, 4, 5, 6, 7, 8]}
        assert compare(ranks, worse).tied == {"best", "one"} - {"one"}

    def test_a_failure_counts_as_a_loss(self):
        losses = {"fine": [1.0] * 8, "bad": [math.inf] * 8, "worse": [2.0] * 8}
        ranks = {"fine": [1.0] * 8, "bad": [3.0] * 8, "worse": [2.0] * 8}
        assert compare(ranks, losses).tied == {"fine"}

    def test_one_stream_is_too_few(self):
        found = compare({"a": [1.0], "b": [2.0], "c": [3.0]}, {"a": [1.0], "b": [2.0], "c": [3.0]})
        assert found.test == "1 stream and 3 methods are too few to compare mean ranks"
        assert found.tied is None


class TestWithinAStream:
    @staticmethod
    def p_values(correlation, gap, trials=400):
        rng = np.random.default_rng(3)
        steps = np.arange(1, STEPS + 1)
        found = []
        for _ in range(trials):
            noise = rng.standard_normal(STEPS)
            for t in range(1, STEPS):
                noise[t] = correlation * noise[t - 1] + math.sqrt(1 - correlation**2) * noise[t]
            running = np.cumsum(noise + gap) / steps
            found.append(block_p_value(steps.tolist(), np.zeros(STEPS), running))
        return np.array(found)

    def test_keeps_its_level(self):
        """400 trials at 0.05: 20 expected, 3 standard deviations above are 33."""
        assert (self.p_values(0.0, 0.0) <= 0.05).sum() <= 33

    def test_keeps_near_its_level_when_neighbours_are_alike(self):
        """Noise with memory of five steps, blocks of ten: within twice the level."""
        assert (self.p_values(0.8, 0.0) <= 0.05).mean() <= 0.1

    def test_sees_what_is_there(self):
        """A gap of 5 standard errors."""
        assert (self.p_values(0.0, 5 / math.sqrt(STEPS), trials=100) <= 0.05).mean() >= 0.9

    def test_running_means_are_taken_apart(self):
        """All of the loss difference is in the first tenth: one block of ten is no evidence."""
        steps = np.arange(1, STEPS + 1)
        burst = np.cumsum(steps <= STEPS // 10) / steps
        assert block_p_value(steps.tolist(), np.zeros(STEPS), burst, blocks=10) > 0.3
        assert block_p_value(steps.tolist(), np.zeros(STEPS), np.ones(STEPS)) == 0.0
        assert block_p_value(steps.tolist(), np.ones(STEPS), np.ones(STEPS)) == 1.0

    def test_a_lead_that_shrinks_is_a_lead(self):
        """Four times the loss, and more in every block: the trend is no noise."""
        steps = np.arange(1, STEPS + 1)
        noise = np.random.default_rng(4).standard_normal((2, STEPS))
        slow = 0.1 + np.exp(-steps / 100) + 0.01 * noise[0]
        one, two = (np.cumsum(x) / steps for x in (0.1 + 0.01 * noise[1], slow))
        assert block_p_value(steps.tolist(), one, two) < 0.001

    def test_blocks_that_speak_against_the_mean_tell_nothing(self):
        """One burst decides the mean, all other blocks are won by the other."""
        steps = np.arange(1, STEPS + 1)
        burst = np.where(steps > STEPS - STEPS // 20, 50.0, 0.9)
        one, two = (np.cumsum(x) / steps for x in (np.ones(STEPS), burst))
        assert one[-1] < two[-1]
        assert block_p_value(steps.tolist(), one, two) == 1.0


class TestWords:
    def test_says_plainly_where_we_lose(self):
        losses = {"filter": 0.88, "sgd": 0.9, "adam": 0.95, "HedgedSGD": 1.0}
        results = {
            cell("a", name): result(loss, noise=0.01, seed=k)
            for k, (name, loss) in enumerate(losses.items())
        }
        said = " ".join(verdict(board(results), "a"))
        assert "filter wins at its default: mean loss 0.8800, 2.2 % below sgd (0.9000;" in said
        assert "HedgedSGD is 4th of 4 here; filter leads it by 12 % (significant, p < 0" in said
        assert "filter is not a first-order method; among those sgd leads" in said

    def test_a_lead_within_the_noise_is_called_so(self):
        results = {
            cell("a", "HedgedSGD"): result(1.0, noise=1.0, seed=1),
            cell("a", "sgd"): result(1.001, noise=1.0, seed=2),
        }
        (said, *_) = verdict(board(results), "a")
        assert "not significant, p = " in said
        assert said.endswith(": a tie.")

    def test_nobody_and_one_alone(self):
        bad = {cell("a", "sgd"): result(status="failed")}
        bad[cell("a", "adam")] = {**result(status="failed"), "message": "ImportError: no torch"}
        bad[cell("a", "filter")] = result(status="diverged")
        assert verdict(board(bad), "a") == [
            "No method came through a: 2 of 3 failed (adam: ImportError: no torch)."
        ]
        one = {**bad, cell("a", "HedgedSGD"): result(1.0)}
        assert verdict(board(one), "a")[0].startswith("HedgedSGD alone came through")
        ours = {cell("a", "HedgedSGD"): result(status="diverged"), cell("a", "sgd"): result(1.0)}
        ours[cell("a", "adam")] = result(2.0)
        assert "HedgedSGD diverged here." in verdict(board(ours), "a")

    def test_over_all_streams(self):
        losses = {"filter": 0.5, "HedgedSGD": 0.8, "sgd": 1.0, "adam": 2.0}
        results = {cell(s, m): result(loss) for s in "abc" for m, loss in losses.items()}
        results |= {cell(s, "sgd", '{"lr":1}'): result(0.9) for s in "abc"}
        said = overall(board(results))
        assert said[0] == (
            "Among 4 methods, each at its default, filter has the best mean rank over 3 streams "
            "(1.0); HedgedSGD is 2nd (2.0)."
        )
        assert "Among 3 first-order methods, each at its default, HedgedSGD has" in said[1]
        assert "on 3 of 3 streams; its loss is 0.889 times as high" in said[2]
        assert "in hindsight, filter has the best mean rank" in said[3]


class TestTies:
    """Who is not told apart from the winner of a stream, and what is recommended then."""

    LOSSES: ClassVar = {"filter": 1.0, "HedgedSGD": 1.002, "sgd": 12.7, "adam": 1.3}

    def results(self, noise):
        return {
            cell("a", name): result(loss, noise=noise, seed=k)
            for k, (name, loss) in enumerate(self.LOSSES.items())
        }

    def test_the_row_at_many_times_the_loss_has_no_dot(self):
        found = board(self.results(0.1))
        assert found.tied("a") == {"filter", "HedgedSGD"}
        assert {one.method for one in found.placings() if one.tied} == {"filter", "HedgedSGD"}
        text = render_race(found, "A test.", {})
        assert text.count("●</abbr>") == 2
        assert "12.7×" in text

    def test_a_tie_is_recommended_as_one(self):
        results = self.results(0.1)
        results[cell("a", "HedgedSGD")]["seconds_per_step"] = 1e-5
        advice = advise(board(results), "a", batch=16)
        assert advice.row.method == "filter"
        assert advice.text == (
            "A tie: take filter (mean loss 1.000, 100 µs a step of 16 rows), but HedgedSGD is not "
            "told apart from it, and HedgedSGD costs 10 µs (mean loss 1.002)."
        )

    def test_a_margin_is_told_with_its_significance(self):
        text = advise(board(self.results(0.0001)), "a", batch=1).text
        begin = "Take filter: its mean loss of 1.000 is 0.2 % below the next, HedgedSGD"
        assert text.startswith(f"{begin} (significant, p < 0.001), at 100 µs a step of 1 row")

    def test_what_cannot_be_tested_is_not_a_tie(self):
        results = self.results(0.1)
        for one in results.values():
            for key in ("curve_steps", "loss_curve"):
                one[key] = one[key][:5]
        found = board(results)
        assert found.tied("a") is None
        assert "●</abbr>" not in render_race(found, "A test.", {})
        assert "too few steps to tell" in advise(found, "a").text

    def test_nobody_and_one_alone(self):
        bad = {cell("a", "sgd"): result(status="failed")}
        assert advise(board(bad), "a") == ("Nothing to recommend: no method came through.", None)
        alone = advise(board({**bad, cell("a", "adam"): result(1.0)}), "a")
        assert alone.text.startswith("Take adam, the only method that came through: mean loss 1.0")

    def test_the_correction_keeps_the_level_among_equals(self):
        """19 against one, all alike: one is set apart in few of 200 races."""
        rng = np.random.default_rng(5)
        steps = np.arange(1, STEPS + 1)
        wrong = 0
        for _ in range(200):
            one, *others = np.cumsum(1.0 + 0.3 * rng.standard_normal((20, STEPS)), axis=1) / steps
            tests = {
                f"{k}": block_p_value(steps.tolist(), one, two) for k, two in enumerate(others)
            }
            wrong += min(holm(tests).values()) <= 0.05
        # 200 trials at 0.05: 10 expected, 3 standard deviations above are 19.
        assert wrong <= 19


class TestPage:
    @pytest.mark.parametrize("streams", ["a", "abc"])
    @pytest.mark.parametrize("grid", [False, True])
    def test_renders_every_kind_of_row(self, streams, grid):
        results = {}
        for stream in streams:
            results[cell(stream, "sgd")] = result(1.0)
            results[cell(stream, "adam")] = result(status="timeout")
            results[cell(stream, "HedgedSGD")] = result(0.5, regret=3.0)
            if grid:
                results[cell(stream, "sgd", '{"lr":0.1}')] = result(0.7)
        text = render_race(board(results), "A test.", {"cocob": "needs <parameterfree>"})
        assert text.count('class="panel"') == 3 * len(streams)
        assert "cocob (needs &lt;parameterfree&gt;)" in text
        assert "timeout: it went wrong" in text
        assert ("best of grid,<br>hindsight" in text) == grid
        assert "nan" not in text

    def test_marks_what_learns_row_by_row(self):
        results = {cell(s, m): result(1.0) for s in "ab" for m in ("sgd", "HedgedSGD")}
        assert "†" not in markdown(board(results)) + render_race(board(results), "A test.", {})
        results |= {cell(s, "adam"): result(0.5) for s in "ab"}
        rows = {row.method: row.by_row for row in board(results).rows}
        assert rows == {"sgd": False, "HedgedSGD": False, "adam": True}
        for text in (markdown(board(results)), render_race(board(results), "A test.", {})):
            assert "† learns from the rows of a batch one after the other" in text
        assert "| 1 | adam † | 1.0" in markdown(board(results))
        assert '<td class="who">adam †</td>' in render_race(board(results), "A test.", {})

    def test_batches_of_1_have_a_column(self):
        results = {cell(s, m): result(1.0) for s in "ab" for m in ("sgd", "HedgedSGD")}
        text = markdown(board(results), Singles({"sgd": 1.25}, rows=4000, streams=2))
        assert "| mean rank, batches of 1 |" in text
        assert [line.split(" | ")[4] for line in text.splitlines() if "| sgd |" in line] == ["1.2"]
        assert "on 4,000 rows at most of each of 2 streams" in text
        assert "batches of 1" not in markdown(board(results))

    def test_renders_a_race_that_has_only_begun(self):
        """Whatever is there first: no method on every stream, a grid here and not there."""
        order = [
            (cell("a", "adam"), result(status="failed")),
            (cell("b", "sgd"), result(1.0)),
            (cell("b", "sgd", '{"lr":0.1}'), result(0.7)),
            (cell("c", "HedgedSGD", seed=1), result(1.0)),
            (cell("c", "sgd", '{"lr":0.1}'), result(1.0)),
            (cell("d", "filter", '{"forget":0.1}'), result(1.0)),
        ]
        for count in range(1, len(order) + 1):
            text = render_race(board(dict(order[:count])), "A test.", {})
            assert "The race: " in text
