"""The rows of `isotherm simulate` as CSV and JSON."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Cell = str | int | float | None


def write_csv(path: Path, rows: Sequence[Mapping[str, Cell]]) -> None:
    """A header and a line for each row. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, about: Mapping[str, Cell], rows: Sequence[Mapping[str, Cell]]) -> None:
    """One object: what the rows are about, and them as "rows". Raises OSError."""
    path.write_text(json.dumps({**about, "rows": list(rows)}, indent=1, allow_nan=False) + "\n", encoding="utf-8")
