"""Server-sent events out of bytes, however these were cut."""

MAX_EVENT = 4 << 20  # bytes; far above any chunk of an answer


class EventTooLargeError(ValueError):
    """An event does not end, or the bytes are no events at all."""


class EventReader:
    """Gives the data of each event as soon as it is whole. Comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that `piece` completes. Raises EventTooLargeError."""
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_return = piece.endswith(b"\r") if piece else self._after_return
        *lines, self._rest = (self._rest + piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(b"\n")
        found = [event for line in lines if (event := self._line(line)) is not None]
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT:
            raise EventTooLargeError(f"an event has more than {MAX_EVENT} bytes")
        return found

    def end(self) -> list[bytes]:
        """What was left without an empty line after it, as some servers end."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> bytes | None:
        """The event that an empty line ends, if any."""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        event, had_data = b"\n".join(self._data), bool(self._data)
        self._data.clear()
        return event if had_data else None
