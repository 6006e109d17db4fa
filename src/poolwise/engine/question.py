"""Question: what saved numbers are an answer to, in a few letters.

Sums in a file do not say which column was the reward, or which targets they speak of.
The fingerprint of the roles does: numbers are used only for the question that they answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from poolwise.log import ONLY_LOGGER
from poolwise.policies import as_policy
from poolwise.policy import expression_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolwise.log import Log
    from poolwise.policy import PolicyLike
    from poolwise.terms import Needs, Term

FORMAT = 1  # of the fingerprint, of saved files and of the columns of an answer
LETTERS = 16


@dataclass(frozen=True)
class Question:
    """Fingerprints of the roles of a log.

    Attributes:
        roles: Of the logger, the reward and the rules.
        targets: Of each target.
        mixture: Of the probabilities under every logger; empty where they are not known.
    """

    roles: str
    targets: Mapping[str, str]
    mixture: str = ""

    def mark(self, needs: Needs) -> str:
        """What an answer to exactly these needs is marked with."""
        parts = [sorted(map(_factors, part)) for part in (needs.means, needs.extremes)]
        groups = sorted(sorted(map(_factors, group)) for group in needs.groups)
        asked = [self.roles, dict(self.targets), self.mixture, *parts, groups]
        return f"{FORMAT}:{_fingerprint(asked)}"


def question(log: Log, targets: Mapping[str, PolicyLike]) -> Question:
    """The question that a log and its targets ask; where the rows are does not matter.

    >>> from poolwise.log import Log
    >>> day = [Log(f"{k}.parquet", reward="r", propensity="p") for k in (1, 2)]
    >>> question(day[0], {"new": "t"}) == question(day[1], {"new": "t"})
    True
    >>> question(day[0], {"new": "t"}) == question(day[1], {"new": "u"})
    False
    """
    logger = ONLY_LOGGER if log.logger is None else _text(log.logger)
    rules = [log.log_probabilities, log.on_fault]
    known = {str(k): _text(v) for k, v in (log.propensities or {}).items() if v is not None}
    own = None if log.propensity is None else _text(log.propensity)
    return Question(
        _fingerprint([logger, _text(log.reward), rules]),
        {str(name): _fingerprint(_text(policy)) for name, policy in targets.items()},
        _fingerprint([known, own]) if log.crossed else "",
    )


def _text(value: PolicyLike) -> str:
    policy = as_policy(value)
    expression = expression_of(policy)
    if expression is None:  # Python: its numbers are in the moments, its code is not
        return f"{type(policy).__name__} in Python"
    return expression.sql(dialect="duckdb", normalize_functions=False)


def _factors(term: Term) -> list[list[str]]:
    return [[f.name, f.logger, f.target, f.rule, repr(f.bound)] for f in term.factors]


def _fingerprint(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return sha256(text.encode()).hexdigest()[:LETTERS]
