"""Decide: ship a candidate, don't, or say that the logs can't tell.

A decision reads the differences of an evaluation with several metrics.  Primary metrics must be
shown to be better than the baseline; guardrails must be shown not to be worse by more than
their margin.  Intervals of primaries hold together for all primaries and candidates, so that
more metrics or more candidates do not make a false "ship" likelier; guardrails have the same
intervals, which makes none of them easier to pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from poolwise.errors import NotShownError, UsageError
from poolwise.evaluation.evaluate import evaluate
from poolwise.evaluation.output import Reported, Row
from poolwise.evaluation.request import named_targets
from poolwise.log.metrics import OWN, Metric, name_metrics
from poolwise.report.decision import decision_tables, say_candidate, say_line, say_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from poolwise.engines.base import EngineLike
    from poolwise.errors import Finding
    from poolwise.evaluation.differences import Difference
    from poolwise.evaluation.results import Evaluation
    from poolwise.intervals.student import Interval
    from poolwise.log.log import Log
    from poolwise.log.metrics import MetricsLike
    from poolwise.log.policy import PolicyLike
    from poolwise.moments.estimate import Estimator
    from poolwise.report.tables import Grid
    from poolwise.rows.reward_model import ModelLike

Verdict = Literal["ship", "don't", "can't tell"]
Shown = Literal["yes", "no", "open"]
EXITS: Mapping[Verdict, int] = {"ship": 0, "don't": 1, "can't tell": 3}
POWER = 0.8  # with which the rows that are named would show the present difference


@dataclass(frozen=True)
class Judgement:
    """One metric of one candidate, against the baseline.

    Attributes:
        metric: Name of the metric.
        role: "primary", "guardrail", both, or empty for a metric that is only shown.
        better: "higher" or "lower".
        value: Value of the candidate; NaN if there is no estimate.
        baseline_value: Value of the baseline, `value` less the difference.
        difference: Candidate less baseline; None if there is no estimate of it.
        margin: Margin of a guardrail in the unit of the metric; None without one, and where the
            baseline is not significantly away from 0 and the margin is a part of it.
        margin_text: Margin as it was asked for, such as "5%"; empty without one.
        primary: "yes" if shown to be better, "no" if shown to be worse, "open" if neither.
        guarded: "yes" if shown not to be worse by more than the margin, "no" if shown to be
            worse by more, "open" if neither.
        more_rows: Rows, of loggers mixed as now, that would probably settle an open
            judgement if the difference is as estimated; infinite if no number would, 0 if
            nothing is open.
        sentence: All of this in one sentence.
    """

    metric: str
    role: str
    better: str
    value: float
    baseline_value: float
    difference: Difference | None
    margin: float | None
    margin_text: str
    primary: Shown
    guarded: Shown
    more_rows: float = 0.0
    sentence: str = ""

    @property
    def asked(self) -> tuple[Shown, ...]:
        """The judgements that the role of the metric asks for."""
        primary = (self.primary,) if "primary" in self.role else ()
        return (*primary, self.guarded) if "guardrail" in self.role else primary

    def to_dict(self) -> Row:
        """Return the judgement under public names."""
        d = self.difference
        row: Row = {k: getattr(self, k) for k in ("metric", "role", "better", "value")}
        row |= {"baseline_value": self.baseline_value}
        row |= {"difference": None, "std_error": None, "lower": None, "upper": None}
        row |= {"relative": None, "relative_lower": None, "relative_upper": None}
        if d is not None:
            row |= {"difference": d.value, "std_error": d.std_error}
            row |= {"lower": d.interval.lower, "upper": d.interval.upper}
            if d.relative is not None:
                ends = d.relative.interval
                row |= {"relative": d.relative.value}
                row |= {"relative_lower": ends.lower, "relative_upper": ends.upper}
        row |= {"margin": self.margin, "guard": self.margin_text or None}
        row |= {"shown_better": self.primary if "primary" in self.role else None}
        row |= {"shown_not_worse": self.guarded if "guardrail" in self.role else None}
        return row | {"more_rows": self.more_rows, "sentence": self.sentence}


@dataclass(frozen=True)
class CandidateVerdict:
    """The verdict about one candidate.

    Attributes:
        candidate: Name of the candidate.
        verdict: "ship", "don't" or "can't tell".
        judgements: One for each metric.
        alarms: Codes of the alarms that forbid a conclusion.
        sentence: The verdict and its reason.
    """

    candidate: str
    verdict: Verdict
    judgements: tuple[Judgement, ...]
    alarms: tuple[str, ...]
    sentence: str

    @property
    def more_rows(self) -> float:
        """Rows that would probably settle what is open; 0 if nothing is."""
        return max((j.more_rows for j in self.judgements if "open" in j.asked), default=0.0)

    def __getitem__(self, metric: str) -> Judgement:
        return {j.metric: j for j in self.judgements}[metric]

    def to_dict(self) -> Row:
        """Return the verdict under public names."""
        return {
            "candidate": self.candidate,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "alarms": list(self.alarms),
            "more_rows": self.more_rows,
            "metrics": [j.to_dict() for j in self.judgements],
        }


@dataclass(frozen=True, repr=False)
class Decision(Reported):
    """Ship, don't, or can't tell, with the reasons.

    Attributes:
        evaluation: The evaluation of all metrics that the decision rests on.
        candidates: Verdict of each candidate.
        baseline: Policy that the candidates are compared with.
        level: Level at which all intervals of primaries hold together.
        findings: Findings of all metrics with a role.
    """

    kind = "decision"
    labels = ("candidate", "metric")
    evaluation: Evaluation = field(compare=False)
    candidates: Mapping[str, CandidateVerdict]
    baseline: str
    level: float
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict: ship a candidate, don't ship any, or can't tell."""
        found = {c.verdict for c in self.candidates.values()}
        if "ship" in found:
            return "ship"
        return "don't" if found == {"don't"} else "can't tell"

    @property
    def exit_status(self) -> int:
        """Exit status of ``poolwise decide``: 0, 1 or 3."""
        return EXITS[self.verdict]

    def __getitem__(self, candidate: str) -> CandidateVerdict:
        return self.candidates[candidate]

    def require(self) -> None:
        """Raise NotShownError unless a candidate may ship."""
        if self.verdict != "ship":
            raise NotShownError("ship", [c.sentence for c in self.candidates.values()])

    @property
    def warnings(self) -> list[Row]:
        """All findings of the evaluation, most serious first."""
        return self.evaluation.warnings

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return say_verdict([c.to_dict() for c in self.candidates.values()])

    @property
    def opening(self) -> Sequence[str]:
        return (self.sentence,)

    def to_dicts(self) -> list[Row]:
        """Return one dictionary per candidate and metric."""
        return [
            {"candidate": name, "verdict": c.verdict, **j.to_dict()}
            for name, c in self.candidates.items()
            for j in c.judgements
        ]

    def to_dict(self) -> Row:
        """Return the whole result, nested; the names are public."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "exit_status": self.exit_status,
            "baseline": self.baseline,
            "level": self.level,
            "interval_level": self.evaluation.level,
            "candidates": [c.to_dict() for c in self.candidates.values()],
            "loggers": [{"logger": i, "rows": n} for i, n in self.evaluation.rows.items()],
            "warnings": self.warnings,
            "fingerprint": self.evaluation.fingerprint,
        }

    def grids(self) -> list[Grid]:
        """Return all tables, in reading order."""
        return decision_tables(self.to_dict())

    def facts(self) -> Row:
        """Return the dictionary that the charts read."""
        return self.evaluation.facts()

    def page_text(self, command: str = "", question: Mapping[str, object] | None = None) -> str:
        """Return the page as HTML; the arguments are those of `save`."""
        from poolwise.report.decision import decision_page

        grids = [grid for e in self._shown().values() for grid in e.brief()]
        facts = self.to_dict()
        return decision_page(
            facts, grids, rewards=self._rewards(), command=command, question=question
        )

    def _rewards(self) -> Mapping[str, str]:
        """Return the column or expression of each metric."""
        found = {name: e.metric for name, e in self.evaluation.metrics.items()}
        return {
            name: self.evaluation.reward
            if m is None
            else m.reward + (f" per {m.per}" if m.ratio else "")
            for name, m in found.items()
        }

    def _shown(self) -> Mapping[str, Evaluation]:
        return {n: replace(e, segments=None) for n, e in self.evaluation.metrics.items()}


def decide(
    log: Log,
    targets: Mapping[str, PolicyLike] | PolicyLike,
    *,
    baseline: str | None = None,
    metrics: MetricsLike | None = None,
    estimator: str | Estimator | None = None,
    level: float = 0.95,
    engine: EngineLike = None,
    model: ModelLike | None = None,
) -> Decision:
    r"""Decide whether a candidate should replace the baseline.

    - *ship*: every primary metric is shown to be better, and no guardrail can be worse by
      more than its margin.
    - *don't*: a primary metric is shown to be worse, or a guardrail is shown to be worse by
      more than its margin.
    - *can't tell*: neither, or an alarm says not to rely on the numbers.

    Each interval has level $1 - (1 - level) / m$ for m primary metrics, and holds for all
    candidates together: if no candidate is better in any primary metric, the probability
    of "ship" is at most half of 1 - level.

    Args:
        log: The rows and what their columns mean.
        targets: Probability of the logged action under each candidate, by name.
        baseline: Label of a logger, or name of a candidate; by default the logger with the
            most rows.
        metrics: Metrics by name, as for `evaluate`. Without a primary metric, the log's own
            reward is the primary one.
        estimator: Name of an estimator, or an estimator; by default the recommended one.
        level: Level of the decision.
        engine: As for `evaluate`.
        model: A reward model, as for `evaluate`.
    """
    if not 0 < level < 1:
        raise UsageError(f"level must be between 0 and 1, got {level:g}")
    named = named_targets(targets)
    if [*named] == [baseline]:
        raise UsageError(f"the only candidate {baseline!r} is the baseline: name another one")
    asked = _with_primary(metrics, log)
    primaries = sum(m.primary for m in asked.values())
    evaluation = evaluate(
        log,
        named,
        estimator,
        level=1 - (1 - level) / primaries,
        engine=engine,
        model=model,
        baseline=baseline,
        metrics=asked if metrics else None,
    )
    if not metrics:
        own = {name: replace(evaluation, metric=m) for name, m in asked.items()}
        evaluation = replace(evaluation, metrics=own)
    compared = [name for name in named if name != evaluation.baseline]
    verdicts = {name: _judge_candidate(evaluation, name) for name in compared}
    return Decision(evaluation, verdicts, evaluation.baseline, level, evaluation.findings)


def _with_primary(metrics: MetricsLike | None, log: Log) -> dict[str, Metric]:
    """Return metrics by name; the log's own reward is primary if no other metric is."""
    named = name_metrics(metrics or {OWN: log.reward}, log)
    if any(m.primary for m in named.values()):
        return named
    own = next(n for n, m in named.items() if m.reward == log.reward and not m.ratio)
    return {**named, own: replace(named[own], primary=True)}


def _judge_candidate(evaluation: Evaluation, name: str) -> CandidateVerdict:
    """Return the verdict about one candidate."""
    roles = {n: e for n, e in evaluation.metrics.items() if e.metric and e.metric.role}
    judgements = tuple(_judge(n, e, name) for n, e in evaluation.metrics.items())
    findings = [f for e in roles.values() for f in (*e.findings, *e[name].findings)]
    findings += evaluation.findings
    alarms = dict.fromkeys(f.code for f in findings if f.severity == "alarm")
    asked = [shown for j in judgements for shown in j.asked]
    verdict: Verdict = "ship" if {*asked} == {"yes"} else "can't tell"
    if "no" in asked:
        verdict = "don't"
    if alarms:
        verdict = "can't tell"
    plain = CandidateVerdict(name, verdict, judgements, tuple(alarms), "")
    return replace(plain, sentence=say_candidate(plain.to_dict(), evaluation.baseline))


def _judge(name: str, evaluation: Evaluation, candidate: str) -> Judgement:
    """Judge one metric of one candidate by the interval of its difference."""
    metric = evaluation.metric
    assert metric is not None  # noqa: S101 - of a metric
    result, gap = evaluation[candidate], evaluation.differences.get(candidate)
    value = result.estimates[result.recommended].value if result.recommended else math.nan
    text = "" if metric.margin is None else str(metric.margin)
    plain = Judgement(
        name, metric.role, metric.better, value, math.nan, gap, None, text, "open", "open"
    )
    if gap is None or gap.verdict == "unreliable" or not result.recommended:
        lost = replace(plain, difference=None, more_rows=math.inf)
        return replace(lost, sentence=say_line(lost.to_dict(), evaluation.baseline))
    worst, best = _improve(metric.sign, gap.interval)
    baseline = value - gap.value
    judged = replace(
        plain,
        baseline_value=baseline,
        margin=_margin(metric, baseline, relative=gap.relative is not None),
        primary="yes" if worst > 0 else "no" if best < 0 else "open",
        guarded=_guard(metric, gap, baseline),
    )
    judged = replace(judged, more_rows=_more_rows(evaluation, metric, judged, candidate))
    return replace(judged, sentence=say_line(judged.to_dict(), evaluation.baseline))


def _improve(sign: float, interval: Interval) -> tuple[float, float]:
    """Return the ends of an interval so that more is better, the worst first."""
    ends = sign * interval.lower, sign * interval.upper
    return min(ends), max(ends)


def _margin(metric: Metric, baseline: float, *, relative: bool) -> float | None:
    """Return the margin of a guardrail in the unit of the metric."""
    if metric.margin is None:
        return None
    if not metric.margin.relative:
        return metric.margin.margin
    return metric.margin.margin * abs(baseline) if relative else None


def _guard(metric: Metric, gap: Difference, baseline: float) -> Shown:
    """Return whether a metric is shown not to be worse by more than its margin."""
    if metric.margin is None:
        return "open"
    if gap.verdict == "identical":
        return "yes"
    interval, sign, margin = gap.interval, metric.sign, metric.margin.margin
    if metric.margin.relative:
        if gap.relative is None:  # no limits in percent, but what is better is not worse
            return "yes" if _improve(sign, interval)[0] > 0 else "open"
        # of a value below 0, a larger part is a smaller value
        interval, sign = gap.relative.interval, math.copysign(sign, sign * baseline)
    worst, best = _improve(sign, interval)
    if worst > -margin:
        return "yes"
    return "no" if best < -margin else "open"


def _more_rows(
    evaluation: Evaluation, metric: Metric, judged: Judgement, candidate: str
) -> float:
    """Return how many more rows would probably settle what is open."""
    gap, needed = judged.difference, 0.0
    if gap is None or "open" not in judged.asked:
        return 0.0
    gain = metric.sign * gap.value
    distances = []
    if "primary" in judged.role and judged.primary == "open":
        distances.append(abs(gain))
    if "guardrail" in judged.role and judged.guarded == "open":
        if judged.margin is None:
            return math.inf
        distances.append(abs(gain + judged.margin))
    for distance in distances:
        if distance == 0:
            return math.inf
        rows = evaluation.rows_to_detect(candidate, distance, power=POWER)
        needed = max(needed, rows - sum(evaluation.rows.values()))
    return max(needed, 0.0)
