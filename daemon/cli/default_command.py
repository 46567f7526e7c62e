"""A command with commands of its own: what is not the name of one goes to the first of them."""

from typing import Any

from typer.core import TyperGroup


class DefaultCommand(TyperGroup):
    """`isotherm profile model.gguf` is `isotherm profile record model.gguf`: the first command registered is the
    default. A file that bears the name of a command is written as ./name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        return super().parse_args(ctx, args if first in self.commands else [next(iter(self.commands)), *args])
