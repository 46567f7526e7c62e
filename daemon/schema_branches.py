"""Whether the branches of a oneOf exclude each other, so that it means the same as anyOf."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import orjson


def exclusive(branches: Sequence[Any]) -> bool:
    """Whether no value fits two of these schemas, as far as their types or a tag that each requires can tell."""
    known = [branch for branch in branches if isinstance(branch, Mapping)]
    if len(known) < len(branches):
        return False
    if _disjoint([_types(branch) for branch in known]):
        return True
    tags = set(known[0].get("required", ()))
    return any(_disjoint([_tag_values(branch, tag) for branch in known]) for tag in sorted(tags))


def _disjoint(sets: Sequence[frozenset[Any]]) -> bool:
    """An empty set stands for anything."""
    return all(sets) and not any(a & b for a, b in combinations(sets, 2))


def _types(branch: Mapping[str, Any]) -> frozenset[Any]:
    types = branch.get("type", [])
    names = types if isinstance(types, list) else [types]
    return frozenset("number" if name == "integer" else name for name in names)


def _tag_values(branch: Mapping[str, Any], tag: str) -> frozenset[Any]:
    """The texts among which a required property chooses; empty if it may be anything else."""
    if branch.get("type") != "object" or tag not in branch.get("required", ()):
        return frozenset()
    schema = branch.get("properties", {}).get(tag, {})
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return frozenset(orjson.dumps(value) for value in values) if texts else frozenset()
