"""ErrorShapes: which paths speak another dialect than OpenAI's, told before anything may refuse a request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """prefix: of the paths. body: an error as a body. id_header: where clients look for the id that all answers carry
    as x-request-id; None for there."""

    prefix: str
    body: Callable[[Exception], Mapping[str, Any]]
    id_header: str | None = None


class ErrorShapes:
    """Notes the shape of errors for whatever answers a request. It goes inside RequestId, outside all that refuses."""

    def __init__(self, app: ASGIApp, shapes: tuple[ErrorShape, ...]) -> None:
        self.app = app
        self.shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shape = next((each for each in self.shapes if scope.get("path", "").startswith(each.prefix)), None)
        if scope["type"] != "http" or shape is None:
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["error_body"] = shape.body
        header = shape.id_header

        async def send_with_id(message: Message) -> None:
            if header is not None and message["type"] == "http.response.start":
                MutableHeaders(scope=message)[header] = scope["state"]["request_id"]
            await send(message)

        await self.app(scope, receive, send_with_id)
