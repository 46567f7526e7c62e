"""NumberLength: how long the number is with which a JSON text ends."""

MAX_NUMBER = 24
"""Characters: the longest that a finite double needs. Grammars of numbers know no end, and some models neither."""

_QUOTE, _BACKSLASH, _NEWLINE = b'"\\\n'
_NUMBER = frozenset(b"+-.0123456789Ee")


class NumberLength:
    """Reads a JSON text as it comes. No string of JSON holds a line end: after one, whatever went before, it begins
    anew."""

    def __init__(self) -> None:
        self._length = 0
        self._in_string = False
        self._escaped = False

    @property
    def reached(self) -> bool:
        """The number should end now, where it can."""
        return self._length >= MAX_NUMBER

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        for byte in data:
            if byte == _NEWLINE:
                self._in_string = self._escaped = False
                self._length = 0
            elif not self._in_string:
                self._in_string = byte == _QUOTE
                self._length = self._length + 1 if byte in _NUMBER else 0
            elif self._escaped:
                self._escaped = False
            else:
                self._escaped = byte == _BACKSLASH
                self._in_string = byte != _QUOTE
