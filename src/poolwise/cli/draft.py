"""Draft: a question as far as it is known, and the words that names of columns are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poolwise.cli.facts import quote
from poolwise.log.log import PATTERN

if TYPE_CHECKING:
    from poolwise.cli.facts import Column, Facts

Words = Sequence[str]
# Words of names, the most telling first.
LOGGERS: Words = (
    *(
        "logger",
        "policy",
        "version",
        "router",
        "ranker",
        "recommender",
        "strategy",
        "algorithm",
    ),
    *("algo", "deployment", "arm", "variant", "variation", "treatment", "bucket", "cohort"),
    *("group", "model"),
)
ACTIONS: Words = (
    *("action", "arm", "item", "choice", "chosen", "decision", "selected", "played", "shown"),
    *("offer", "product", "creative", "banner", "template", "variant", "variation", "price"),
    *("bid", "discount", "dose", "treatment", "ad", "article", "model", "option", "doc"),
)
REWARDS: Words = (
    *("reward", "click", "clicked", "clicks", "conversion", "converted", "revenue", "outcome"),
    *(
        "feedback",
        "purchase",
        "purchased",
        "bought",
        "order",
        "sale",
        "sales",
        "sold",
        "profit",
    ),
    *("margin", "gmv", "spend", "amount", "solved", "resolved", "success", "successful"),
    *("opened", "open", "booked", "signup", "subscribed", "engaged", "liked", "thumbs"),
    *("rating", "watch", "dwell", "accepted", "correct", "paid", "streams", "label", "y"),
    *("conversions", "orders", "purchases"),
)
COSTS: Words = ("cost", "loss", "regret", "penalty", "refund", "error", "latency", "churned")
CLUSTERS: Words = (
    *("user", "customer", "visitor", "member", "subject", "account", "client", "recipient"),
    *("patient", "player", "household", "device", "cookie", "anonymous", "email", "uid"),
    *("session", "visit"),
)
REQUESTS: Words = (
    *("request", "query", "impression", "search", "serp", "pageview", "page", "slate", "list"),
    *("feed", "req", "qid"),
)
SESSIONS: Words = (
    *("session", "conversation", "episode", "dialog", "dialogue", "chat", "visit", "journey"),
    *("trajectory", "thread"),
)
POSITIONS: Words = ("position", "pos", "rank", "slot", "place")
STEPS: Words = ("step", "turn", "stage", "t", "index", "seq", "sequence", "round")
CHANCES: Words = (
    *("propensity", "propensities", "pscore", "prob", "probs", "probability", "probabilities"),
    *("p", "pi", "chance", "chances", "weights", "distribution", "dist", "logp", "logprob"),
    *("logprobs", "density", "pdf", "policy"),
)
LOGGED: Words = ("logging", "logged", "behavior", "behaviour", "own")
OF_ACTION: Words = ("score", "action", "log", *LOGGED)
TARGETS: Words = (
    *("target", "candidate", "new", "next", "shadow", "proposed", "challenger", "evaluation"),
)
DENSITIES: Words = ("density", "pdf")
IDS: Words = ("id", "uuid", "key", "hash", "guid")


@dataclass
class Draft:
    """A question as far as it is known.

    Attributes:
        keys: Value and reason of each key.
        clicks: The same of the table `clicks`.
        targets: The same of each target; tables are mappings.
        offered: Keys to consider, with a value and the reason why they are left out.
        missing: What a question cannot do without, in sentences.
        open: What could not be decided, in sentences.
        used: Columns that have a role.
    """

    keys: dict[str, tuple[object, str]] = field(default_factory=dict)
    clicks: dict[str, tuple[object, str]] = field(default_factory=dict)
    targets: dict[str, tuple[object, str]] = field(default_factory=dict)
    offered: dict[str, tuple[object, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def put(self, key: str, value: object, reason: str, *columns: str) -> None:
        """Decide a key, and mark the columns that it uses."""
        self.keys[key] = (value, reason)
        self.used |= set(columns)

    def put_target(self, name: str, column: str, reason: str) -> None:
        """Decide a target."""
        self.targets[name] = (column, reason)
        self.used.add(column)

    def text(self, key: str) -> str | None:
        """Return the value of a key, if it is decided."""
        value = self.keys.get(key, (None, ""))[0]
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class Pattern:
    """Columns that the labels of a column name: one for each label, perhaps others.

    Attributes:
        labelled: Column whose values are the labels.
        labels: Its values.
        before: Text before the label in the names of the columns.
        after: Text after it.
    """

    labelled: str
    labels: tuple[str, ...]
    before: str
    after: str

    @property
    def text(self) -> str:
        return f"{self.before}{PATTERN}{self.after}"

    @property
    def names(self) -> list[str]:
        return [f"{self.before}{label}{self.after}" for label in self.labels]

    def others(self, names: Sequence[str]) -> dict[str, str]:
        """Return columns of the same form with another label."""
        found = {}
        for name in names:
            inside = name[len(self.before) : len(name) - len(self.after)]
            formed = inside and name == f"{self.before}{inside}{self.after}"
            if formed and inside not in self.labels:
                found[inside] = name
        return found


def rank_word(column: Column, words: Words) -> int:
    """Return the place of the most telling word of a name; a large number without one.

    The last words of a name say what it is: `user_id` is a user, `click_user` as well.
    """
    places = [words.index(word) for word in column.words if word in words]
    return min(places) if places else len(words) + 1


def best_named(columns: Sequence[Column], words: Words) -> Column | None:
    """Return the column with the most telling name."""
    named = [c for c in columns if rank_word(c, words) <= len(words)]
    return min(named, key=lambda c: (rank_word(c, words), len(c.words))) if named else None


def is_id(column: Column) -> bool:
    """Test if a name is that of an ID."""
    return bool(column.words) and column.words[-1] in IDS


def is_rank(column: Column) -> bool:
    """Test if a column may hold ranks under a ranker, 0 where it would not show the item."""
    ranks = column.is_number and column.whole and (column.low or 0) >= 0
    return ranks and (column.high or 0) > 1 and rank_word(column, POSITIONS) <= len(POSITIONS)


def unused(facts: Facts, draft: Draft) -> list[Column]:
    """Return the columns that have no role yet."""
    return [c for c in facts.columns.values() if c.name not in draft.used and c.kind != "other"]


def reference(facts: Facts, name: str) -> str:
    """Return a column as an expression of a log reads it: quoted only where it must be."""
    parts = [name] if name in facts.types else name.split(".")
    plain = [part.isidentifier() and part.isascii() for part in parts]
    return ".".join(p if simple else quote(p) for p, simple in zip(parts, plain, strict=True))


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return names as a sentence lists them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
