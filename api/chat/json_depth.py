"""JsonDepth: where a JSON text that comes in pieces ends."""


class JsonDepth:
    """Counts the brackets of one JSON object or array outside its strings."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def closes(self, piece: str) -> bool:
        """Whether the bracket that was opened first is closed within this piece."""
        return self.end(piece) is not None

    def end(self, piece: str) -> int | None:
        """The place in this piece after the bracket that closes the first one, None if it is not there."""
        for place, char in enumerate(piece):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return place + 1
        return None
