"""A command with commands of its own: what is not the name of one goes to the first of them."""

from typing import Any

from typer.core import TyperGroup


class DefaultCommand(TyperGroup):
    """`isotherm profile model.gguf` is `isotherm profile record model.gguf`, and its help says so: the first command
    registered is the default. A file that bears the name of a command is written as ./name."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        chosen = args[0] if args else ""
        if chosen in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        return next(iter(self.commands.values())).make_context(info_name, args, parent, **extra)
