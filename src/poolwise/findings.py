"""Findings: what a reader must know before trusting a number.

An estimate that fell back on something, or that rests on too little, carries
findings.  Each has a stable code for programs and a sentence for people that says
what was seen and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["note", "warning", "alarm"]
GRAVEST_FIRST: tuple[Severity, ...] = ("alarm", "warning", "note")


@dataclass(frozen=True, order=True)
class Finding:
    """One thing to know.

    Attributes:
        code: Stable name, such as ``no-spread``.
        message: A sentence that says what was seen.
        advice: What to do about it.
        severity: "note" explains, "warning" limits, "alarm" forbids to rely on it.
    """

    code: str
    message: str
    advice: str = ""
    severity: Severity = "warning"

    @property
    def rank(self) -> int:
        """Place among findings when the gravest come first."""
        return GRAVEST_FIRST.index(self.severity)

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()
