"""Holding: a request holds its model until its answer has ended, however it ends."""

from starlette.types import ASGIApp, Receive, Scope, Send

from .server import Held
from .service import Service


class Holding:
    """Lets go of what `hold` has noted."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held: list[Held] = []
        scope.setdefault("state", {})["held"] = held
        try:
            await self.app(scope, receive, send)
        finally:
            while held:
                held.pop().release()


def hold(scope: Scope, held: Held) -> Service:
    """Have the request hold a model from now on."""
    scope["state"]["held"].append(held)
    return held.value.service


def keep_for(scope: Scope, seconds: float | None) -> None:
    """Say for how long the request's model stays loaded after it."""
    for held in scope["state"]["held"]:
        held.keep_for(seconds)
