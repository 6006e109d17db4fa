"""Loading: the log and the policies that options of the command line describe.

A policy is a column or an SQL expression, a Python object named ``module:attribute``, a
learned policy in a JSON file, or a scikit-learn model in a file.  Importing a module runs its
code, and naming it is consent.  Opening a file must not run code: skops files are read type
by type, and a pickle, which is a program, is loaded only with ``--trust``.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from poolwise.errors import MissingExtraError, PolicyError, UsageError, did_you_mean
from poolwise.log.log import ESTIMATE, PATTERN, Log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from poolwise.cli.options import ClickOptions, RankerOptions, RoleOptions, SourceOptions
    from poolwise.log.policy import PolicyLike

WORD = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
OBJECT = re.compile(rf"(?P<module>{WORD}):(?P<attribute>{WORD})")
PICKLES = (".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill")
FILE_ENDINGS = (".json", ".skops", *PICKLES)
CONVERT = "skops.io.dump(model, 'model.skops')"
TRUST = "If you trust its author, pass --trust"
LIST_PARTS = {
    "position": "request",
    "ranking": "request",
    "step": "session",
    "reward_at": "session",
}
NOTHING = object()  # loaded; a file may hold None
OF_LISTS = ("request", "session", *LIST_PARTS)
NOT_OF_ROWS = ("trust", "engine", "master")  # options of the run
TREES = "sklearn.ensemble:HistGradientBoosting"
MODELS = {  # of rewards
    "ridge": "sklearn.linear_model:Ridge",
    "logistic": "sklearn.linear_model:LogisticRegression",
    "hist-gradient-boosting": f"{TREES}Regressor",
}
CLASSIFIERS = {  # of the logger that wrote a row
    "logistic": "sklearn.linear_model:LogisticRegression",
    "hist-gradient-boosting": f"{TREES}Classifier",
}


def build_log(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions, *, moments: bool = False
) -> Log:
    """Return the log that the options describe; with `moments` it is a table without rows."""
    return declare(logs, roles, source, moments=moments)[0]


def declare(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions, *, moments: bool = False
) -> tuple[Log, dict[str, str]]:
    """Return the log that the options describe, and targets that its format has."""
    if not logs and not moments:
        raise UsageError("LOGS are required: paths, globs, or one SELECT")
    if source.format is not None or source.outcomes is not None or source.format_option:
        if moments:
            raise UsageError("--format and --outcomes have no meaning with moments")
        from poolwise.cli.readers import read_log

        return read_log(logs, roles, source)
    if source.join:
        raise UsageError("--join requires --outcomes")
    return _declare_rows(logs, roles, source, moments=moments), {}


def _declare_rows(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions, *, moments: bool
) -> Log:
    """Return the log of rows whose columns have the roles that options name."""
    require_reward(roles)
    return Log(
        None if moments else logs[0] if len(logs) == 1 else list(logs),
        table=(logs[0] if logs else "log") if moments else None,
        **role_values(roles, source),
    )


def role_values(roles: RoleOptions, source: SourceOptions) -> dict[str, Any]:
    """Return the arguments of a log that options give, without its source."""
    own, trust = roles.propensity, source.trust
    return {
        "reward": roles.reward,
        "logger": roles.logger,
        "propensity": None if own is None else named_policy(own, trust=trust),
        "propensities": _loggers(roles, trust=trust) or None,
        "action": source.action,
        "action_group": _groups(source.action_group),
        "eligible": source.eligible,
        "context": split(source.context),
        "reader_options": reader_options(source.reader_option or []),
        "cluster": source.cluster,
        "period": source.period,
        "timezone": source.timezone,
        "mixture": source.mixture,
        "estimate_mixture": _mixture_model(source),
        "confounders": source.confounders,
        "replay_tolerance": source.replay_tolerance,
        "trained_on": _group_pairs(source.trained_on or []),
        "on_fault": source.on_fault,
        "log_probabilities": roles.log_probabilities,
        "densities": roles.densities,
        "reward_range": _range(source.reward_range),
    }


def require_reward(roles: RoleOptions) -> str:
    """Return the reward; raise if none is named."""
    if roles.reward is None:
        raise UsageError("--reward is required: a column or SQL; in a question file, `reward`")
    return roles.reward


def build_question(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions, *, optional: bool = False
) -> tuple[Log, dict[str, PolicyLike]]:
    """Return the log and the targets; rows of lists and sessions become one log of both.

    Args:
        logs: Paths, globs, or one SELECT.
        roles: Columns of the log, and targets.
        source: Options about the rows.
        optional: Whether there may be no target.
    """
    if source.request is None and source.session is None:
        _refuse_parts(source)
        log, own = declare(logs, roles, source)
        targets = build_targets(roles, trust=source.trust, optional=optional or bool(own))
        return log, targets or dict(own)
    return _build_lists(logs, roles, source)


def _refuse_parts(source: SourceOptions) -> None:
    for part, whole in LIST_PARTS.items():
        if getattr(source, part) is not None and getattr(source, whole) is None:
            raise UsageError(f"{flag(part)} requires {flag(whole)}")


def flag(name: str) -> str:
    """Return an option as users type it.

    >>> flag("reward_at")
    '--reward-at'
    """
    return f"--{name.replace('_', '-')}"


def _build_lists(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions
) -> tuple[Log, dict[str, PolicyLike]]:
    """Return the log and the targets of rows that are positions of lists, or steps."""
    if source.request is not None and source.session is not None:
        raise UsageError("rows are lists (--request) or sessions (--session), not both")
    _refuse_parts(source)
    known = {*vars(roles), "cluster", "trained_on", "reader_option", *OF_LISTS}
    plain = type(source)()
    others = [
        name
        for name, value in vars(source).items()
        if name not in {*known, *NOT_OF_ROWS} and value != getattr(plain, name)
    ]
    others += ["densities"] * roles.densities
    if others:
        kind = "request" if source.request else "session"
        raise UsageError(f"{flag(others[0])} has no meaning with {flag(kind)}")
    from poolwise.formats.rankings import ranking_log, session_log

    targets: Any = build_targets(roles, trust=source.trust)
    shared: dict[str, Any] = {
        "reward": require_reward(roles),
        "logger": roles.logger,
        "propensity": roles.propensity,
        "propensities": _loggers(roles, trust=source.trust) or None,
        "cluster": source.cluster,
        "trained_on": _group_pairs(source.trained_on or []),
        "log_probabilities": roles.log_probabilities,
        "reader_options": reader_options(source.reader_option or []),
    }
    place: Any = logs[0] if len(logs) == 1 else list(logs)
    if source.session is not None:
        at = source.reward_at or "step"
        found = session_log(
            place, targets, session=source.session, step=source.step, reward_at=at, **shared
        )
    else:
        request, model = str(source.request), source.ranking or "cascade"
        found = ranking_log(
            place, targets, request=request, position=source.position, model=model, **shared
        )
    return found.log, dict(found.targets)


def named_model(text: str | None, kinds: Mapping[str, str], *, trust: bool) -> object:
    """Return the model that a word of the command line names; None without one.

    Args:
        text: A name of `kinds`, ``module:attribute``, or the path of a model file.
        kinds: Module and class of each name.
        trust: Also load pickles.
    """
    if text is None:
        return None
    if text in kinds:
        module, _, name = kinds[text].partition(":")
        try:
            return getattr(importlib.import_module(module), name)()
        except ImportError:
            raise MissingExtraError("scikit-learn", "sklearn") from None
    value = _load_object(text, trust=trust)
    if value is NOTHING:
        hint = did_you_mean(text, kinds)
        raise UsageError(
            f"a model must be {', '.join(kinds)}, module:attribute or a file, got "
            f"{text!r}{hint}"
        )
    return value


def build_clicks(
    logs: Sequence[str], clicks: ClickOptions, rankers: RankerOptions
) -> tuple[object, dict[str, Any]]:
    """Return the source, and the arguments that `click_log` and `position_bias` share."""
    if not logs:
        raise UsageError("LOGS are required: paths, globs, or one SELECT")
    pattern = len(clicks.ranks) == 1 and PATTERN in clicks.ranks[0]
    return logs[0] if len(logs) == 1 else list(logs), {
        "request": clicks.request,
        "click": clicks.click,
        "position": clicks.position,
        "logger": rankers.logger,
        "ranks": clicks.ranks[0] if pattern else pairs(clicks.ranks, "--ranks"),
        "cluster": rankers.cluster,
        "reader_options": reader_options(rankers.reader_option or []),
    }


def by_position(texts: Sequence[str] | None, option: str) -> dict[int, float] | None:
    """Parse POSITION=NUMBER[,POSITION=NUMBER...].

    >>> by_position(["1=1", "2=0.6,3=0.4"], "--bias")
    {1: 1.0, 2: 0.6, 3: 0.4}
    """
    if not texts:
        return None
    try:
        return {int(k): float(v) for k, v in pairs(texts, option).items()}
    except ValueError:
        raise UsageError(
            f"{option} must be POSITION=NUMBER, got {', '.join(texts)!r}"
        ) from None


def _mixture_model(source: SourceOptions) -> object:
    """Return the classifier that estimates the mixture, True for the default, or False."""
    text = source.estimate_mixture
    if text is None or text in {"default", "true"}:
        return text is not None
    return named_model(text, CLASSIFIERS, trust=source.trust)


def build_targets(
    roles: RoleOptions, *, trust: bool = False, optional: bool = False
) -> dict[str, PolicyLike]:
    """Return the targets by name; raise if there are none, unless they are optional."""
    targets = pairs(roles.target or [], "--target")
    if not targets and not optional:
        raise UsageError(
            "at least one --target is required, e.g. --target candidate=p_candidate; in a "
            'question file, candidate = "p_candidate" below [targets]'
        )
    loggers = _loggers(roles, trust=trust) if targets else {}
    loggers = {} if isinstance(loggers, str) else loggers
    return {
        name: named_policy(value, trust=trust, loggers=loggers)
        for name, value in targets.items()
    }


def _loggers(roles: RoleOptions, *, trust: bool) -> dict[str, PolicyLike] | str:
    """Return the policies of the loggers by label, a pattern of columns, or "estimate"."""
    texts = roles.propensities or []
    if len(texts) == 1 and (PATTERN in texts[0] or texts[0] == ESTIMATE):
        return texts[0]
    values = pairs(texts, "--propensities")
    return {name: named_policy(value, trust=trust) for name, value in values.items()}


def split(texts: Sequence[str] | None) -> list[str]:
    """Return the names in texts of the form COLUMN,COLUMN."""
    return [name for text in texts or () for name in text.split(",")]


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=COLUMN[,NAME=COLUMN...]; commas inside brackets do not separate.

    >>> pairs(["v1=p1,v2=least(p2, 1)", "v3=p3"], "--target")
    {'v1': 'p1', 'v2': 'least(p2, 1)', 'v3': 'p3'}
    >>> pairs(['new={"a": 0.5, "b": 0.5}'], "--target")
    {'new': '{"a": 0.5, "b": 0.5}'}
    """
    values: dict[str, str] = {}
    for piece in (piece for text in texts for piece in _pieces(text)):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} must be NAME=COLUMN, got {piece!r}")
        if name in values:
            raise UsageError(f"{option} names {name!r} twice")
        values[name] = value
    return values


def list_metrics(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse one NAME=REWARD of each text, which may have commas.

    >>> list_metrics(["revenue=amount", "latency=ms, lower, guard 5%"], "--metric")
    {'revenue': 'amount', 'latency': 'ms, lower, guard 5%'}
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{option} must be NAME=REWARD, got {text!r}")
        if name in values:
            raise UsageError(f"{option} names {name!r} twice")
        values[name] = value
    return values


def numbers(texts: Sequence[str] | None, option: str) -> dict[str, float]:
    """Parse NAME=NUMBER[,NAME=NUMBER...].

    >>> numbers(["new=0.5,old=1"], "--truth")
    {'new': 0.5, 'old': 1.0}
    """
    try:
        return {name: float(value) for name, value in pairs(texts or (), option).items()}
    except ValueError:
        raise UsageError(
            f"{option} must be NAME=NUMBER, got {', '.join(texts or ())!r}"
        ) from None


def number_list(texts: Sequence[str], option: str) -> list[float]:
    """Parse NUMBER[,NUMBER...].

    >>> number_list(["0.1,1", "10"], "--strengths")
    [0.1, 1.0, 10.0]
    """
    try:
        return [float(text) for text in split(texts)]
    except ValueError:
        raise UsageError(f"{option} must be NUMBER,NUMBER, got {', '.join(texts)!r}") from None


def _pieces(text: str) -> list[str]:
    """Split at commas outside parentheses and braces; texts of JSON may hold any of them."""
    pieces: list[str] = []
    depth, start, braces, quoted = 0, 0, 0, False
    for index, letter in enumerate(text):
        quoted ^= letter == '"' and braces > 0 and text[index - 1] != "\\"
        if quoted:
            continue
        braces += (letter == "{") - (letter == "}")
        depth += (letter in "({") - (letter in ")}")
        if letter == "," and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]


def reader_options(texts: Sequence[str]) -> dict[str, object]:
    """Parse KEY=VALUE; integers, true and false become Python values."""
    options: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise UsageError(f"--reader-option must be KEY=VALUE, got {text!r}")
        truth = {"true": True, "false": False}.get(value.strip().lower())
        number = int(value) if re.fullmatch(r"-?\d{1,9}", value) else value
        options[name.strip()] = number if truth is None else truth
    return options


def _group_pairs(texts: Sequence[str]) -> dict[str, list[str]]:
    others: dict[str, list[str]] = {}
    for text in texts:
        for name, other in pairs([text], "--trained-on").items():
            others.setdefault(name, []).append(other)
    return others


def _groups(text: str | None) -> dict[str, str] | str | None:
    """Return the column of the groups of actions, or the content of a JSON file of them."""
    if text is None or Path(text).suffix.lower() != ".json":
        return text
    try:
        data = json.loads(_content(text))
    except (ValueError, RecursionError):
        data = None
    kinds = {type(group) for group in data.values()} if isinstance(data, dict) else {None}
    if not data or kinds - {str, int}:
        raise UsageError(
            f"{text} must be a JSON object of actions and groups, such as "
            '{"tea": "drinks", "rum": "drinks"}'
        )
    return {str(action): str(group) for action, group in data.items()}


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        lower, upper = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--reward-range must be LOWER,UPPER, got {text!r}") from None
    return lower, upper


def named_policy(
    text: str, *, trust: bool = False, loggers: Mapping[str, PolicyLike] | None = None
) -> PolicyLike:
    """Return the policy that a word of the command line names.

    Args:
        text: ``module:attribute``, a table of actions and probabilities in JSON, the path of
            such a table or of a learned policy (``.json``), of a ``.skops`` file or of a
            pickle, or anything else, which is a column or an SQL expression and is returned
            unchanged.
        trust: Also load pickles, and types that skops does not know: both can run any code.
        loggers: Loggers by label, which a learned policy may need.

    Raises:
        UsageError: There is no such object or file, it is not a policy, or it needs `trust`.
        MissingExtraError: The file needs a package that is not installed.

    Examples:
        >>> named_policy("least(p, 1)")
        'least(p, 1)'
        >>> named_policy("poolwise.log.log:Log.name")
        Traceback (most recent call last):
            ...
        poolwise.errors.UsageError: poolwise.log.log:Log.name: Log has no attribute 'name'
    """
    ending = Path(text).suffix.lower()
    value = _load_object(text, trust=trust)
    if value is not NOTHING:
        pass
    elif text.strip().startswith("{") and text.strip().endswith("}"):
        return _build_table(text, _parse_numbers(text))
    elif ending == ".json":
        from poolwise.learning.policy import load_policy

        data = _parse_numbers(_content(text).decode("utf-8", "replace"))
        return (
            _build_table(text, data)
            if data
            else load_policy(text, loggers=loggers, trust=trust)
        )
    else:
        return text

    from poolwise.log.adapters import as_policy  # imports NumPy, which --help does not need

    try:
        as_policy(cast("Any", value))
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None
    return cast("PolicyLike", value)


def _load_object(text: str, *, trust: bool) -> object:
    """Return the object that a text names in a module or a file; otherwise `NOTHING`."""
    match, ending = OBJECT.fullmatch(text), Path(text).suffix.lower()
    if match:
        return _call_factory(text, _attribute(text, match["module"], match["attribute"]))
    if ending == ".skops":
        return _from_skops(text, _content(text), trust=trust)
    if ending in PICKLES:
        return _from_pickle(text, ending, trust=trust)
    return NOTHING


def _parse_numbers(text: str) -> dict[str, float]:
    """Return a JSON object of numbers; an empty one for any other text."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    numeric = isinstance(data, dict) and all(type(p) in {int, float} for p in data.values())
    return data if numeric else {}


def _build_table(name: str, data: dict[str, float]) -> PolicyLike:
    """Return a table of actions and probabilities as a policy."""
    from poolwise.log.adapters import Table

    if not data:
        raise UsageError(
            "a table must be a JSON object of actions and probabilities, such as "
            f'{{"a": 0.9, "b": 0.1}}, got {name}'
        )
    try:
        return Table(data)
    except PolicyError as error:
        raise UsageError(f"{name}: the table {error.reason}") from None


def _attribute(text: str, module: str, attribute: str) -> object:
    value: object = _import_module(text, module)
    for name in attribute.split("."):
        if not hasattr(value, name):
            owner = getattr(value, "__name__", type(value).__name__)
            hint = did_you_mean(name, [n for n in dir(value) if not n.startswith("_")])
            raise UsageError(f"{text}: {owner} has no attribute {name!r}{hint}")
        value = getattr(value, name)
    return value


def _import_module(text: str, module: str) -> ModuleType:
    """Import a module; installed packages come before files of the current folder."""
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"{text}: importing {module} needs {error.name!r}") from error
        raise UsageError(
            f"{text}: there is no module {error.name!r}, neither installed nor in this folder"
        ) from None
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{text}: importing {module} failed with {_describe_error(error)}"
        ) from error


def _call_factory(text: str, value: Any) -> object:  # noqa: ANN401 - any object of a module
    """Call a class or a function without parameters; return other objects unchanged."""
    factory = inspect.isfunction(value) and not inspect.signature(value).parameters
    if not (factory or inspect.isclass(value)):
        return value
    try:
        return value()
    except Exception as error:
        raise UsageError(
            f"{text}: calling it without arguments failed with {_describe_error(error)}"
        ) from error


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _from_skops(path: str, content: bytes, *, trust: bool) -> object:
    from poolwise.files import refuse_bomb

    try:
        from skops import io as skops
    except ImportError:
        raise MissingExtraError("skops", "skops") from None
    try:
        refuse_bomb(content)
        unknown = sorted(skops.get_untrusted_types(data=content))
        if trust or not unknown:
            return skops.loads(content, trusted=unknown)
    except Exception as error:
        raise UsageError(f"{path} is not a model that skops can read: {error}") from error
    raise UsageError(
        f"{path} holds types that skops does not know: {', '.join(unknown)}. "
        f"Loading them can run code. {TRUST}"
    )


def _from_pickle(path: str, ending: str, *, trust: bool) -> object:
    if not trust:
        raise UsageError(
            f"{path} is a pickle, and loading a pickle runs the program in it. Save the model "
            f"with {CONVERT} and name that file. {TRUST}"
        )
    content = _content(path)
    try:
        if ending == ".joblib":
            import joblib

            return joblib.load(io.BytesIO(content))
        return pickle.loads(content)  # noqa: S301 - trusted, see above
    except ImportError as error:
        if error.name == "joblib":
            raise MissingExtraError("joblib", "sklearn") from None
        raise UsageError(f"{path} needs {error.name!r}, which is not installed") from error
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {_describe_error(error)}") from error


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
