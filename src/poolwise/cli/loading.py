"""Named policies: how the command line says which policy it means.

A policy is a column or an SQL expression, a Python object named ``module:attribute``, or a
scikit-learn model in a file.  Importing a module runs its code, and naming it is consent.
Opening a file must not run anything: skops files are read type by type, and a pickle, which
is a program, is loaded only by those who say that they trust it.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolwise.errors import MissingExtraError, UsageError, nearest
from poolwise.log.policies import as_policy

if TYPE_CHECKING:
    from types import ModuleType

    from poolwise.log.policy import PolicyLike

WORD = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
OBJECT = re.compile(rf"(?P<module>{WORD}):(?P<attribute>{WORD})")
PICKLES = (".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill")
CONVERT = "skops.io.dump(model, 'model.skops')"


def named_policy(text: str, *, trust: bool = False) -> PolicyLike:
    """The policy that a word of the command line stands for.

    Args:
        text: ``module:attribute``, the path of a ``.skops`` file, of a pickle, or anything
            else, which is a column or an SQL expression and comes back as it is.
        trust: Also load pickles, and types that skops does not know: both can run any code.

    Raises:
        UsageError: There is no such thing, it is not a policy, or it must be trusted first.
        MissingExtraError: The file needs a package that is not installed.

    Examples:
        >>> named_policy("least(p, 1)")
        'least(p, 1)'
        >>> named_policy("poolwise.log.log:Log.name")
        Traceback (most recent call last):
            ...
        poolwise.errors.UsageError: poolwise.log.log:Log.name: Log has no attribute 'name'
    """
    match = OBJECT.fullmatch(text)
    if match:
        return _checked(text, _made(text, _found(text, match["module"], match["attribute"])))
    ending = Path(text).suffix.lower()
    if ending == ".skops":
        return _checked(text, _from_skops(text, _content(text), trust=trust))
    if ending in PICKLES:
        return _checked(text, _from_pickle(text, ending, trust=trust))
    return text


def _checked(text: str, value: Any) -> PolicyLike:  # noqa: ANN401 - whatever was found
    try:
        as_policy(value)
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None
    policy: PolicyLike = value
    return policy


def _found(text: str, module: str, attribute: str) -> object:
    value: object = _imported(text, module)
    for name in attribute.split("."):
        if not hasattr(value, name):
            owner = getattr(value, "__name__", type(value).__name__)
            close = nearest(name, [n for n in dir(value) if not n.startswith("_")])
            hint = f"; did you mean {close!r}?" if close else ""
            raise UsageError(f"{text}: {owner} has no attribute {name!r}{hint}")
        value = getattr(value, name)
    return value


def _imported(text: str, module: str) -> ModuleType:
    """A module from the packages of Python, or else from the current folder.

    In that order, so that a file that lies about cannot stand in for a package.
    """
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
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{text}: importing {module} failed with {said}") from error


def _made(text: str, value: Any) -> object:  # noqa: ANN401 - whatever was found
    """A class or a function without arguments makes the policy; the rest is one."""
    maker = inspect.isfunction(value) and not inspect.signature(value).parameters
    if not (maker or inspect.isclass(value)):
        return value
    try:
        made: object = value()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{text}: calling it without arguments failed with {said}") from error
    return made


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _from_skops(path: str, content: bytes, *, trust: bool) -> object:
    try:
        from skops import io as skops
    except ImportError:
        raise MissingExtraError("skops", "skops") from None
    try:
        unknown = sorted(skops.get_untrusted_types(data=content))
        if trust or not unknown:
            return skops.loads(content, trusted=unknown)
    except Exception as error:
        raise UsageError(f"{path} is not a model that skops can read: {error}") from error
    raise UsageError(
        f"{path} holds types that skops does not know: {', '.join(unknown)}. "
        "Building them can run code. If you know who wrote the file, say --trust"
    )


def _from_pickle(path: str, ending: str, *, trust: bool) -> object:
    if not trust:
        raise UsageError(
            f"{path} is a pickle, and loading a pickle runs whatever program is in it. "
            f"Where the model was made, save it with {CONVERT} and name that file; or, if you "
            "know who wrote this one, say --trust"
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
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} cannot be loaded: {said}") from error
