"""Structure: the form that an answer must have."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Structure:
    """kind: what `source` is: the text of a JSON schema, of a regular expression, or of a Lark grammar as llguidance
    reads it. A choice among texts is a regular expression, any JSON object the schema {"type": "object"}.

    trigger: None constrains the answer from its first token. A text: what comes is free until the answer holds it, and
    obeys from there on.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str
    trigger: str | None = None
