"""poolwise: what would the new policy have earned? Ask every log you have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolwise.engine.duckdb import DuckDB
    from poolwise.errors import LogError, PoolwiseError
    from poolwise.estimators.base import Estimate
    from poolwise.estimators.ips import Balanced, Naive, Weighted
    from poolwise.exact import FiniteProblem
    from poolwise.log import Log
    from poolwise.pipeline import evaluate
    from poolwise.policies import Classifier, EpsilonGreedy, Mixture, Softmax, Table
    from poolwise.policy import Batch, Column, Expression, Function, Policy, Uniform
    from poolwise.result import Evaluation

__version__ = "0.1.0"

# Where each public name lives. Names are imported when first used: a script that only
# reads a policy does not wait for DuckDB, and `poolwise --help` waits for nothing.
_HOMES = {
    "Balanced": "estimators.ips",
    "Batch": "policy",
    "Classifier": "policies",
    "Column": "policy",
    "DuckDB": "engine.duckdb",
    "EpsilonGreedy": "policies",
    "Estimate": "estimators.base",
    "Evaluation": "result",
    "Expression": "policy",
    "FiniteProblem": "exact",
    "Function": "policy",
    "Log": "log",
    "LogError": "errors",
    "Mixture": "policies",
    "Naive": "estimators.ips",
    "Policy": "policy",
    "PoolwiseError": "errors",
    "Softmax": "policies",
    "Table": "policies",
    "Uniform": "policy",
    "Weighted": "estimators.ips",
    "evaluate": "pipeline",
}

__all__ = [
    "Balanced",
    "Batch",
    "Classifier",
    "Column",
    "DuckDB",
    "EpsilonGreedy",
    "Estimate",
    "Evaluation",
    "Expression",
    "FiniteProblem",
    "Function",
    "Log",
    "LogError",
    "Mixture",
    "Naive",
    "Policy",
    "PoolwiseError",
    "Softmax",
    "Table",
    "Uniform",
    "Weighted",
    "evaluate",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'poolwise' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"poolwise.{_HOMES[name]}"), name)
    globals()[name] = value  # also wins over a submodule of the same name
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
