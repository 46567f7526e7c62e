"""The rows of `isotherm simulate` as CSV and JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..placement.files import replacing

Cell = str | int | float | None


def write_csv(path: Path, rows: Sequence[Mapping[str, Cell]]) -> None:
    """A header and a line for each row. Raises OSError."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def write_json(path: Path, about: Mapping[str, Cell], rows: Sequence[Mapping[str, Cell]]) -> None:
    """One object: what the rows are about, and them as "rows". Raises OSError."""
    text = json.dumps({**about, "rows": list(rows)}, indent=1, allow_nan=False) + "\n"
    with replacing(path) as file:
        file.write(text.encode())
