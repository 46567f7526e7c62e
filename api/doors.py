"""Doors: who is let in. What may change while a server runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from .cors import cors_settings


class Doors:
    """names: of the accepted keys, by their sha256 digests; none leaves the server open. origins: of the pages that
    browsers let in. Requests that are already in stay in."""

    def __init__(self, digests: Iterable[bytes], names: Mapping[bytes, str], origins: tuple[str, ...]) -> None:
        self.set(digests, names, origins)

    def set(self, digests: Iterable[bytes], names: Mapping[bytes, str], origins: tuple[str, ...]) -> None:
        self.names: Mapping[bytes, str] = {digest: names.get(digest, digest.hex()) for digest in digests}
        self.origins = origins


class Cors:
    """Starlette's middleware with the origins of now. Its answers to browsers that ask first need no key."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self.app, self._doors = app, doors
        self._made: tuple[tuple[str, ...], Any] = ((), app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = self._doors.origins
        if self._made[0] != origins:
            self._made = origins, CORSMiddleware(self.app, **cors_settings(origins)) if origins else self.app
        await self._made[1](scope, receive, send)
