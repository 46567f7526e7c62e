"""Whether the branches of a oneOf exclude each other, so that it means the same as anyOf."""

from collections.abc import Mapping, Sequence
from typing import Any


def exclusive(branches: Sequence[Any]) -> bool:
    """Whether no value fits two of these schemas, as far as their types or a tag that each requires can tell."""
    known = [branch for branch in branches if isinstance(branch, Mapping)]
    if len(known) < len(branches):
        return False
    if _disjoint([_types(branch) for branch in known]):
        return True
    tags = [_tags(branch) for branch in known]
    shared = set(tags[0]).intersection(*tags[1:])
    return any(_disjoint([each[tag] for each in tags]) for tag in shared)


def _disjoint(sets: Sequence[frozenset[str]]) -> bool:
    """An empty set stands for anything."""
    return all(sets) and len(frozenset().union(*sets)) == sum(map(len, sets))


def _types(branch: Mapping[str, Any]) -> frozenset[str]:
    types = branch.get("type", [])
    names = types if isinstance(types, list) else [types]
    return frozenset("number" if name == "integer" else name for name in names)


def _tags(branch: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The required properties of an object that choose among texts, and these texts."""
    if branch.get("type") != "object":
        return {}
    properties = branch.get("properties", {})
    texts = {name: _texts(properties[name]) for name in set(branch.get("required", ())) if name in properties}
    return {name: values for name, values in texts.items() if values}


def _texts(schema: Any) -> frozenset[str]:
    """Empty if it may be anything else."""
    if not isinstance(schema, Mapping):
        return frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return frozenset(values) if all(isinstance(value, str) for value in values) else frozenset()
