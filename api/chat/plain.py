"""PlainReader: of a model that neither thinks nor calls."""

from collections.abc import Sequence

from .events import ChatEvent, Text


class PlainReader:
    """All is text."""

    def push(self, text: str) -> Sequence[ChatEvent]:
        """The text itself."""
        return [Text(text)]

    def finish(self) -> Sequence[ChatEvent]:
        """Nothing was held back."""
        return []
