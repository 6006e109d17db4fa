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
import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from poolwise.errors import MissingExtraError, UsageError, did_you_mean
from poolwise.log.log import PATTERN, Log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from poolwise.cli.options import RoleOptions, SourceOptions
    from poolwise.log.policy import PolicyLike

WORD = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
OBJECT = re.compile(rf"(?P<module>{WORD}):(?P<attribute>{WORD})")
PICKLES = (".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill")
FILE_ENDINGS = (".json", ".skops", *PICKLES)
CONVERT = "skops.io.dump(model, 'model.skops')"
TRUST = "If you trust its author, pass --trust"


def build_log(
    logs: Sequence[str], roles: RoleOptions, source: SourceOptions, *, moments: bool = False
) -> Log:
    """Return the log that the options describe; with `moments` it is a table without rows."""
    if not logs and not moments:
        raise UsageError("LOGS are required: paths, globs, or one SELECT")
    own, trust = roles.propensity, source.trust
    return Log(
        None if moments else logs[0] if len(logs) == 1 else list(logs),
        table=(logs[0] if logs else "log") if moments else None,
        reward=roles.reward,
        logger=roles.logger,
        propensity=None if own is None else named_policy(own, trust=trust),
        propensities=_loggers(roles, trust=trust) or None,
        action=source.action,
        eligible=source.eligible,
        context=split(source.context),
        reader_options=_reader_options(source.reader_option or []),
        cluster=source.cluster,
        period=source.period,
        timezone=source.timezone,
        trained_on=_lists(source.trained_on or []),
        on_fault=source.on_fault,
        log_probabilities=roles.log_probabilities,
        densities=roles.densities,
        reward_range=_range(source.reward_range),
    )


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
    """Return the policies of the loggers by label, or a pattern of their columns."""
    texts = roles.propensities or []
    if len(texts) == 1 and PATTERN in texts[0]:
        return texts[0]
    values = pairs(texts, "--propensities")
    return {name: named_policy(value, trust=trust) for name, value in values.items()}


def split(texts: Sequence[str] | None) -> list[str]:
    """Return the names in texts of the form COLUMN,COLUMN."""
    return [name for text in texts or () for name in text.split(",")]


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse NAME=COLUMN[,NAME=COLUMN...]; commas inside parentheses do not separate.

    >>> pairs(["v1=p1,v2=least(p2, 1)", "v3=p3"], "--target")
    {'v1': 'p1', 'v2': 'least(p2, 1)', 'v3': 'p3'}
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


def _pieces(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    pieces: list[str] = []
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            pieces.append(text[start:index])
            start = index + 1
    return [*pieces, text[start:]]


def _reader_options(texts: Sequence[str]) -> dict[str, object]:
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


def _lists(texts: Sequence[str]) -> dict[str, list[str]]:
    others: dict[str, list[str]] = {}
    for text in texts:
        for name, other in pairs([text], "--trained-on").items():
            others.setdefault(name, []).append(other)
    return others


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
        text: ``module:attribute``, the path of a learned policy (``.json``), of a ``.skops``
            file or of a pickle, or anything else, which is a column or an SQL expression and
            is returned unchanged.
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
    match, ending = OBJECT.fullmatch(text), Path(text).suffix.lower()
    if match:
        value = _called(text, _attribute(text, match["module"], match["attribute"]))
    elif ending == ".json":
        from poolwise.learning.policy import load_policy

        return load_policy(text, loggers=loggers, trust=trust)
    elif ending == ".skops":
        value = _from_skops(text, _content(text), trust=trust)
    elif ending in PICKLES:
        value = _from_pickle(text, ending, trust=trust)
    else:
        return text

    from poolwise.log.adapters import as_policy  # imports NumPy, which --help does not need

    try:
        as_policy(cast("Any", value))
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None
    return cast("PolicyLike", value)


def _attribute(text: str, module: str, attribute: str) -> object:
    value: object = _imported(text, module)
    for name in attribute.split("."):
        if not hasattr(value, name):
            owner = getattr(value, "__name__", type(value).__name__)
            hint = did_you_mean(name, [n for n in dir(value) if not n.startswith("_")])
            raise UsageError(f"{text}: {owner} has no attribute {name!r}{hint}")
        value = getattr(value, name)
    return value


def _imported(text: str, module: str) -> ModuleType:
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
            f"{text}: importing {module} failed with {_described(error)}"
        ) from error


def _called(text: str, value: Any) -> object:  # noqa: ANN401 - any object of a module
    """Call a class or a function without parameters; return other objects unchanged."""
    factory = inspect.isfunction(value) and not inspect.signature(value).parameters
    if not (factory or inspect.isclass(value)):
        return value
    try:
        return value()
    except Exception as error:
        raise UsageError(
            f"{text}: calling it without arguments failed with {_described(error)}"
        ) from error


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _from_skops(path: str, content: bytes, *, trust: bool) -> object:
    from poolwise.rows.archives import refuse_bomb

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
        raise UsageError(f"{path} cannot be loaded: {_described(error)}") from error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
