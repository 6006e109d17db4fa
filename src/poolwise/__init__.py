"""poolwise: what would the new policy have earned? Ask every log you have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poolwise.border import check
    from poolwise.crf import PairwiseCRF, UnaryCRF
    from poolwise.decision.comparison import compare
    from poolwise.decision.outlook import Plan
    from poolwise.decision.planning import plan
    from poolwise.decision.ranking import Comparison
    from poolwise.engine.duckdb import DuckDB
    from poolwise.engine.spark import Spark
    from poolwise.engine.warehouse import Warehouse
    from poolwise.errors import LogError, PoolwiseError
    from poolwise.estimators.base import Estimate
    from poolwise.estimators.control import Calibrated, SelfNormalised
    from poolwise.estimators.crossfit import CrossFitted
    from poolwise.estimators.ips import Balanced, Naive, Weighted
    from poolwise.estimators.model import DirectMethod, DoublyRobust
    from poolwise.estimators.shrink import Shrink
    from poolwise.estimators.tuned import tuned
    from poolwise.exact import FiniteProblem
    from poolwise.formats.dsjson import from_dsjson
    from poolwise.formats.obd import from_obd
    from poolwise.formats.obp import from_obp
    from poolwise.learned.reward_model import GivenModel, RewardModel
    from poolwise.log import Log
    from poolwise.pipeline import evaluate
    from poolwise.policies import Classifier, EpsilonGreedy, Mixture, Softmax, Table
    from poolwise.policy import Batch, Column, Expression, Function, Policy, Uniform
    from poolwise.rankings import ranking_log
    from poolwise.result import Evaluation
    from poolwise.scoring import score_log
    from poolwise.simulate import bandit_log
    from poolwise.summaries import from_result, summarise
    from poolwise.summary import Summary

__version__ = "0.1.0"

# Where each public name lives. Names are imported when first used: a script that only
# reads a policy does not wait for DuckDB, and `poolwise --help` waits for nothing.
_HOMES = {
    "Balanced": "estimators.ips",
    "Batch": "policy",
    "Calibrated": "estimators.control",
    "Classifier": "policies",
    "Column": "policy",
    "Comparison": "decision.ranking",
    "CrossFitted": "estimators.crossfit",
    "DirectMethod": "estimators.model",
    "DoublyRobust": "estimators.model",
    "DuckDB": "engine.duckdb",
    "EpsilonGreedy": "policies",
    "Estimate": "estimators.base",
    "Evaluation": "result",
    "Expression": "policy",
    "FiniteProblem": "exact",
    "Function": "policy",
    "GivenModel": "learned.reward_model",
    "Log": "log",
    "LogError": "errors",
    "Mixture": "policies",
    "Naive": "estimators.ips",
    "PairwiseCRF": "crf",
    "Plan": "decision.outlook",
    "Policy": "policy",
    "PoolwiseError": "errors",
    "RewardModel": "learned.reward_model",
    "SelfNormalised": "estimators.control",
    "Shrink": "estimators.shrink",
    "Softmax": "policies",
    "Spark": "engine.spark",
    "Summary": "summary",
    "Table": "policies",
    "UnaryCRF": "crf",
    "Uniform": "policy",
    "Warehouse": "engine.warehouse",
    "Weighted": "estimators.ips",
    "bandit_log": "simulate",
    "check": "border",
    "compare": "decision.comparison",
    "evaluate": "pipeline",
    "from_dsjson": "formats.dsjson",
    "from_obd": "formats.obd",
    "from_obp": "formats.obp",
    "from_result": "summaries",
    "plan": "decision.planning",
    "ranking_log": "rankings",
    "score_log": "scoring",
    "summarise": "summaries",
    "tuned": "estimators.tuned",
}

__all__ = [
    "Balanced",
    "Batch",
    "Calibrated",
    "Classifier",
    "Column",
    "Comparison",
    "CrossFitted",
    "DirectMethod",
    "DoublyRobust",
    "DuckDB",
    "EpsilonGreedy",
    "Estimate",
    "Evaluation",
    "Expression",
    "FiniteProblem",
    "Function",
    "GivenModel",
    "Log",
    "LogError",
    "Mixture",
    "Naive",
    "PairwiseCRF",
    "Plan",
    "Policy",
    "PoolwiseError",
    "RewardModel",
    "SelfNormalised",
    "Shrink",
    "Softmax",
    "Spark",
    "Summary",
    "Table",
    "UnaryCRF",
    "Uniform",
    "Warehouse",
    "Weighted",
    "bandit_log",
    "check",
    "compare",
    "evaluate",
    "from_dsjson",
    "from_obd",
    "from_obp",
    "from_result",
    "plan",
    "ranking_log",
    "score_log",
    "summarise",
    "tuned",
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
