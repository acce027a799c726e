"""A claim of the paper, the rule that judges it, and the judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driftrate.paper.base import Tables, Verdict

Found = tuple[Verdict, str]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Args:
        name: A short name.
        text: The claim in our words.
        where: Where the paper makes it.
        figure: The figure whose runs decide it.
        rule_text: How it is judged, in a line.
        rule: Judges it: from the figure's tables to a verdict and the measured figure.
    """

    name: str
    text: str
    where: str
    figure: str
    rule_text: str
    rule: Callable[[Tables], Found]


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict.

    Args:
        claim: The claim.
        verdict: What the rule found.
        measured: The measured figure, with its spread.
    """

    claim: Claim
    verdict: Verdict
    measured: str

    def row(self) -> dict[str, str]:
        """Return the judgement for `verdicts.json`."""
        return {
            "name": self.claim.name,
            "claim": self.claim.text,
            "where": self.claim.where,
            "verdict": self.verdict,
            "measured": self.measured,
            "rule": self.claim.rule_text,
            "picture": f"{self.claim.figure}.svg",
        }


def judge(claim: Claim, tables: Mapping[str, Tables]) -> Judgement:
    """Apply a claim's rule to the runs of its figure."""
    verdict, measured = claim.rule(tables[claim.figure])
    return Judgement(claim, verdict, measured)
