"""Finding: what one look at a patient brought."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Grade = Literal["good", "advice", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """subject: what was looked at, in two words. advice: it works, and could be better. remedy: empty where nothing is
    to be done."""

    subject: str
    grade: Grade
    told: str
    remedy: str = ""


def good(subject: str, told: str) -> Finding:
    return Finding(subject, "good", told)


def advice(subject: str, told: str, remedy: str) -> Finding:
    return Finding(subject, "advice", told, remedy)


def fault(subject: str, told: str, remedy: str) -> Finding:
    return Finding(subject, "fault", told, remedy)


def worst(findings: Iterable[Finding]) -> Grade:
    grades = {finding.grade for finding in findings}
    return "fault" if "fault" in grades else "advice" if "advice" in grades else "good"
