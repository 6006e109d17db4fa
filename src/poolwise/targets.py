"""Targets: the new policies of a question, by name, and those that nobody can answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from poolwise.errors import RefusedError, UsageError
from poolwise.terms import WEIGHT, Term

if TYPE_CHECKING:
    from poolwise.moments import MomentsByLogger
    from poolwise.policy import PolicyLike


def named_targets(targets: Mapping[str, PolicyLike] | PolicyLike) -> dict[str, PolicyLike]:
    """Targets by name; one alone is called "target"."""
    if isinstance(targets, Mapping):
        if not targets:
            raise UsageError("there is no target: name one policy at least")
        if "" in map(str, targets):
            raise UsageError("a target needs a name")
        if all(isinstance(value, int | float) for value in targets.values()):
            raise UsageError(
                "these targets are numbers: name a policy for each, as in "
                "{'candidate': 'p_candidate'}; one table of probabilities by action is "
                "{'candidate': pw.Table({...})}"
            )
        return {str(name): policy for name, policy in targets.items()}
    return {"target": targets}


def refuse_unlogged(views: Mapping[str, MomentsByLogger], weight: Term = WEIGHT) -> None:
    """Refuse targets of which the logs say nothing at all."""
    silent = [t for t, view in views.items() if not any(m.max(weight) for m in view.values())]
    if silent:
        found = ", ".join(map(repr, silent))
        raise RefusedError(
            "target-unlogged",
            f"target {found} gives probability 0 to every logged action: these logs say "
            "nothing about it. Check that the probability is that of the *logged* action.",
        )
