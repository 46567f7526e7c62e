"""The report of the device script: lines as they come, what went wrong, and what was left out."""

import sys
import time


class Report:
    """seconds: within which everything should be over."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self.faults: list[str] = []
        self.skipped: list[str] = []

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._ends

    def title(self, text: str) -> None:
        self.line(f"\n## {text}\n")

    def line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def fault(self, text: str) -> None:
        self.faults.append(text)
        self.line(f"* WRONG: {text}")

    def skip(self, text: str) -> None:
        self.skipped.append(text)

    def end(self) -> int:
        """Print what was skipped, and the verdict; an exit code."""
        self.title("Skipped")
        for text in self.skipped or ["nothing"]:
            self.line(f"* {text}")
        self.title("Verdict")
        self.line(f"{len(self.faults)} faults" if self.faults else "everything agrees")
        return 1 if self.faults else 0
