"""What a stream of the Responses API is told while its model is loaded."""

from typing import Any

from ..errors import kind_of, message_of
from ..framing import Framing, named_frame
from ..manners import Manners


def _error(error: Exception) -> dict[str, Any]:
    """The event of a stream that fails before there is a response."""
    param = getattr(error, "param", None)
    told = {"code": kind_of(error).code or "server_error", "message": message_of(error), "param": param}
    return {"type": "error", **told, "sequence_number": 0}


_FRAMING = Framing("text/event-stream", named_frame, b": ping\n\n", b"", _error, opens_at_once=True)
MANNERS = Manners(framing=lambda _model: _FRAMING)
