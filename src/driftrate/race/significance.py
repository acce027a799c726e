"""Which differences of a race are more than luck: over streams, and within one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.05
# The runs of a stream are compared in this many consecutive blocks.
BLOCKS = 20
_FEWEST_BLOCKS = 8
# What a comparison says of its test where there is one stream.
WITHIN = (
    f"the paired test within the stream, Holm's correction for the number of methods, level "
    f"{LEVEL:g}"
)
_FEWEST_STREAMS = 3
_MOST_EXACT = 25


@dataclass(frozen=True)
class Comparison:
    """What a test over streams says, with the test in words and why it was chosen.

    `tied` are the leader, which has the best mean rank, and the methods that do not differ
    significantly from it; None where nothing could be tested. `p` is
    that of Friedman's test that all methods are alike, and `critical_difference` the significant
    difference of mean ranks; None where there is none.
    """

    test: str
    leader: str
    tied: frozenset[str] | None
    p: float | None = None
    critical_difference: float | None = None


def compare(
    ranks: Mapping[str, Sequence[float]], losses: Mapping[str, Sequence[float]]
) -> Comparison:
    """Compare methods over streams.

    With enough streams: Wilcoxon's signed-rank test of each method against the leader on the
    relative difference of their losses, with Holm's correction for their number. Its smallest
    p-value is 2^(1 - N), so k methods need N >= 1 + log2((k - 1)/0.05) streams. With fewer:
    Friedman's test and Nemenyi's critical difference CD = q sqrt(k (k + 1)/(12 N)), where q is the
    95 % point of the studentised range of k means.

    Args:
        ranks: The rank of each method on each stream.
        losses: The loss of each method on each stream; infinite where it has no result.

    Returns:
        The leader and the methods that do not differ significantly from it, None with under three
        streams or methods.

    Example:
        >>> ranks = {"a": [1, 1, 1], "b": [2, 3, 2], "c": [3, 2, 3]}
        >>> found = compare(ranks, ranks)
        >>> found.leader, sorted(found.tied), round(found.critical_difference, 2)
        ('a', ['a', 'b', 'c'], 1.91)

    Reference:
        J. Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006.
    """
    means = {name: float(np.mean(row)) for name, row in ranks.items()}
    leader = min(means, key=lambda name: means[name])
    streams = len(ranks[leader])
    others = [name for name in ranks if name != leader]
    if streams < _FEWEST_STREAMS or len(others) < 2:
        few = f"{streams} stream{'s' * (streams != 1)} and {len(ranks)} methods"
        return Comparison(f"{few} are too few to compare mean ranks", leader, None)
    if len(others) * 2.0 ** (1 - streams) <= LEVEL:
        test = f"Wilcoxon's signed-rank test against the leader on {streams} streams, "
        test += f"Holm's correction for {len(others)} methods, level {LEVEL:g}"
        return Comparison(test, leader, _wilcoxon_holm(leader, others, losses))
    from scipy.stats import friedmanchisquare, studentized_range

    with np.errstate(invalid="ignore"):  # all ranks shared: NaN
        p = float(friedmanchisquare(*ranks.values()).pvalue)
    k = len(ranks)
    spread = studentized_range.ppf(1 - LEVEL, k, np.inf)
    critical = float(spread) * math.sqrt(k * (k + 1) / (12 * streams))
    alike = p > LEVEL or math.isnan(p)  # Nemenyi's test is for after Friedman's
    tied = {name for name in ranks if alike or means[name] - means[leader] < critical}
    test = (
        f"Friedman's test, then Nemenyi's critical difference, level {LEVEL:g} "
        f"({streams} streams are too few for Wilcoxon's test with {len(others)} comparisons)"
    )
    return Comparison(test, leader, frozenset(tied), p, critical)


def _wilcoxon_holm(
    leader: str, others: Sequence[str], losses: Mapping[str, Sequence[float]]
) -> frozenset[str]:
    from scipy.stats import wilcoxon

    best = np.asarray(losses[leader], float)
    # Told outright: left to itself scipy resamples where a few differences are tied, for seconds.
    method = "exact" if len(best) <= _MOST_EXACT else "asymptotic"
    p_values = {}
    for name in others:
        gaps = [_gap(one, two) for one, two in zip(best, losses[name], strict=True)]
        p_values[name] = float(wilcoxon(gaps, method=method).pvalue) if any(gaps) else 1.0
    return frozenset({leader, *(name for name, p in holm(p_values).items() if p > LEVEL)})


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values that allow for their number: Holm's step-down correction.

    In order, p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)), so that the chance that
    any of m true hypotheses falls below a level is that level at most.

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'c': 0.06, 'b': 0.06}

    Reference:
        S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
        Statistics 6, 1979.
    """
    found: dict[str, float] = {}
    most = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        # The first that fails stops all that follow.
        most = max(most, min(1.0, (len(p_values) - place) * p_values[name]))
        found[name] = most
    return found


def _gap(one: float, two: float) -> float:
    """Return (two - one)/(|two| + |one|), which stays finite when a loss is not."""
    if not math.isfinite(one) or not math.isfinite(two):
        return float(math.isfinite(one)) - float(math.isfinite(two))
    scale = abs(one) + abs(two)
    return (two - one) / scale if scale else 0.0


def block_p_value(
    steps: Sequence[int], one: npt.ArrayLike, two: npt.ArrayLike, blocks: int = BLOCKS
) -> float | None:
    """Return the p-value of one stream's loss difference between two methods.

    Both ran through the same batches in the same order, so their losses are compared in pairs: a
    t-test on the signed ranks of the relative differences (b - a)/(|a| + |b|) of the losses of
    consecutive blocks, which is valid with one seed. Losses of a stream come in bursts, and the
    difference of one block may be that of all others together; ranks count each block. If they
    speak against the difference of the means, nothing is told apart. Neighbouring blocks of a
    drifting stream are alike; n blocks with correlation ρ > 0 between neighbours count as
    n (1 - ρ)/(1 + ρ). Where every block has the same winner, what changes evenly in time, such as
    the lead over a slow learner, is no noise: variance and ρ are those around a line.

    Args:
        steps: The steps at which the curves were taken.
        one: The running mean loss of the first method at these steps.
        two: That of the second.
        blocks: How many blocks to make at most.

    Returns:
        The two-sided p-value, or None if the curves are too short to tell.

    Example:
        >>> steps = list(range(1, 101))
        >>> wave = np.sin(np.arange(100.0))
        >>> running = lambda losses: np.cumsum(losses) / np.arange(1, 101)
        >>> bool(block_p_value(steps, running(wave), running(wave + 0.1 + 0.05 * wave)) < 0.001)
        True
        >>> block_p_value(steps[:5], wave[:5], wave[:5]) is None
        True

    Reference:
        Conover and Iman (1981), "Rank transformations as a bridge between parametric and
        nonparametric statistics", The American Statistician 35.
    """
    from scipy.stats import rankdata, t

    place = np.asarray(steps, float)
    count = min(blocks, len(place))
    first, second = np.asarray(one, float), np.asarray(two, float)
    if count < _FEWEST_BLOCKS or not (len(first) == len(second) == len(place)):
        return None
    ends = np.linspace(0, len(place), count + 1).astype(int)[1:] - 1
    mine, others = (np.diff(curve[ends] * place[ends], prepend=0.0) for curve in (first, second))
    scale = np.abs(mine) + np.abs(others)
    gaps = np.divide(others - mine, scale, out=np.zeros(count), where=scale != 0.0)
    if not np.isfinite(gaps).all():
        return None
    ranks = np.sign(gaps) * rankdata(np.abs(gaps))
    if ranks.mean() * (second[-1] - first[-1]) < 0.0:
        return 1.0
    centred, lost = ranks - ranks.mean(), 1
    if abs(np.sign(gaps).sum()) == count:
        time = np.arange(count) - 0.5 * (count - 1)
        centred, lost = centred - time * (time @ centred) / (time @ time), 2
    variance = float(centred @ centred)
    if variance == 0.0:
        return 1.0 if gaps[0] == 0.0 else 0.0
    correlation = max(0.0, float(centred[1:] @ centred[:-1]) / variance)
    effective = max(1.0 + lost, count * (1 - correlation) / (1 + correlation))
    error = math.sqrt(variance / (count - lost) / effective)
    return float(2 * t.sf(abs(ranks.mean()) / error, effective - lost))
