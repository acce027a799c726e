"""A claim of the paper, the rule that judges it, and the judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driftrate.paper.base import Tables, Verdict

Found = tuple[Verdict, str]
Rule = Callable[[Tables], Found]


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    name: str
    text: str  # the claim in our words
    where: str  # the paper makes it
    figure: str  # whose runs decide it
    rule_text: str  # how it is judged, in a line
    rule: Rule  # from the figure's tables to a verdict and what was measured


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict
    measured: str  # the measured figure, with its spread

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


class Claims(list[Claim]):
    """Claims in the order in which their rules are written, each with the name of its rule."""

    def add(self, figure: str, where: str, text: str, rule_text: str) -> Callable[[Rule], Rule]:
        """Add the claim that the decorated function judges."""

        def decorate(rule: Rule) -> Rule:
            name = rule.__name__.strip("_").replace("_", "-")
            self.append(Claim(name, text, where, figure, rule_text, rule))
            return rule

        return decorate


def judge(claim: Claim, tables: Mapping[str, Tables]) -> Judgement:
    """Apply a claim's rule to the runs of its figure."""
    verdict, measured = claim.rule(tables[claim.figure])
    return Judgement(claim, verdict, measured)
