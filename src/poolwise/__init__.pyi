# Public names and where each lives; `__init__.py` imports a name when it is first used.

from .engines.duckdb import DuckDB as DuckDB
from .engines.exact import FiniteProblem as FiniteProblem
from .engines.saved import Summary as Summary
from .engines.spark import Spark as Spark
from .engines.warehouse import Warehouse as Warehouse
from .errors import LogError as LogError
from .errors import PoolwiseError as PoolwiseError
from .estimators.calibrated import Calibrated as Calibrated
from .estimators.calibrated import SelfNormalised as SelfNormalised
from .estimators.crossfit import CrossFitted as CrossFitted
from .estimators.ips import Balanced as Balanced
from .estimators.ips import Naive as Naive
from .estimators.ips import Weighted as Weighted
from .estimators.model import DirectMethod as DirectMethod
from .estimators.model import DoublyRobust as DoublyRobust
from .estimators.shrink import Shrink as Shrink
from .estimators.shrink import tuned as tuned
from .evaluation.check import check as check
from .evaluation.check import score_log as score_log
from .evaluation.compare import Comparison as Comparison
from .evaluation.compare import compare as compare
from .evaluation.evaluate import evaluate as evaluate
from .evaluation.plan import Plan as Plan
from .evaluation.plan import plan as plan
from .evaluation.results import Evaluation as Evaluation
from .evaluation.summarise import from_result as from_result
from .evaluation.summarise import summarise as summarise
from .formats.labelled import bandit_log as bandit_log
from .formats.obd import from_obd as from_obd
from .formats.obp import from_obp as from_obp
from .formats.rankings import ranking_log as ranking_log
from .formats.vw import from_dsjson as from_dsjson
from .learning.learn import learn as learn
from .learning.learned import Learned as Learned
from .learning.policy import LinearPolicy as LinearPolicy
from .learning.policy import load_policy as load_policy
from .log.crf import PairwiseCRF as PairwiseCRF
from .log.crf import UnaryCRF as UnaryCRF
from .log.log import Log as Log
from .log.policies import Classifier as Classifier
from .log.policies import EpsilonGreedy as EpsilonGreedy
from .log.policies import Mixture as Mixture
from .log.policies import Softmax as Softmax
from .log.policies import Table as Table
from .log.policy import Batch as Batch
from .log.policy import Column as Column
from .log.policy import Expression as Expression
from .log.policy import Function as Function
from .log.policy import Policy as Policy
from .log.policy import Uniform as Uniform
from .moments.estimate import Estimate as Estimate
from .rows.reward_model import GivenModel as GivenModel
from .rows.reward_model import RewardModel as RewardModel

__all__: list[str]
__version__: str
