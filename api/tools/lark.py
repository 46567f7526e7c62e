"""Lark: writes a grammar in the syntax of llguidance, rule by rule."""

import json
import re
from collections.abc import Mapping
from typing import Any

_META = re.compile(r"[^\w ]", re.ASCII)


class Lark:
    """control: names of control tokens and their ids; in literals they stand for the tokens."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = {name: token_id for name, token_id in control.items() if name}
        names = sorted(map(re.escape, self._control), key=len, reverse=True)
        self._names = re.compile("|".join(names)) if names else None
        self._rules: list[str] = []

    def rule(self, body: str, *, attributes: str = "") -> str:
        """Add a rule and give its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def source(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._rules])

    def literal(self, text: str) -> str:
        """Exactly this text; empty for none."""
        parts, place = [], 0
        for match in self._names.finditer(text) if self._names else ():
            parts.append(self._quoted(text[place : match.start()]))
            parts.append(f"<[{self._control[match[0]]}]>")
            place = match.end()
        parts.append(self._quoted(text[place:]))
        return " ".join(part for part in parts if part)

    def json(self, schema: Mapping[str, Any]) -> str:
        """A value of this schema."""
        return self.rule(f"%json {json.dumps(schema)}")

    def upto(self, end: str) -> str:
        """Any text up to `end` and with it."""
        if self._names is not None and self._names.search(end):
            return f"{self.rule('/(?s:.*)/')} {self.literal(end)}"
        return self.rule(f"/(?s:.*){pattern(end)}/", attributes="[lazy]")

    def either(self, choices: list[str]) -> str:
        """One of these."""
        return choices[0] if len(choices) == 1 else self.rule(" | ".join(choices))

    @staticmethod
    def _quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False) if text else ""


def pattern(text: str) -> str:
    """A regular expression for the text itself."""
    return _META.sub(lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def from_regex(source: str) -> str:
    """A regular expression as grammars write it."""
    parts = re.split(r"(\\.|/|\n)", source, flags=re.DOTALL)
    changed = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
    return f"/{''.join(changed.get(part, part) for part in parts)}/"
