"""Examination: all looks at a patient, one after the other."""

import logging
from collections.abc import Callable, Iterator

from ...experts.progress import Progress
from . import cards, files, memory, model, processor, service, unit
from .finding import Finding, fault
from .patient import Patient

logger = logging.getLogger(__name__)

Look = Callable[[Patient], Iterator[Finding]]
LOOKS: tuple[Look, ...] = (
    *processor.LOOKS,
    *memory.LOOKS,
    *cards.LOOKS,
    *files.LOOKS,
    *model.LOOKS,
    *service.LOOKS,
    *unit.LOOKS,
)


def examine(patient: Patient, progress: Progress, looks: tuple[Look, ...] = LOOKS) -> list[Finding]:
    """What all looks find. One that breaks is a finding of its own."""
    findings: list[Finding] = []
    for number, look in enumerate(looks):
        progress("examining", number, len(looks))
        try:
            findings += look(patient)
        except Exception as error:
            logger.exception("%s broke", look.__name__)
            findings.append(
                fault(look.__name__, f"the look broke: {type(error).__name__}: {error}", "report it, with this line")
            )
    progress("examining", len(looks), len(looks))
    return findings
