"""API keys. Every route but /health and the dashboard's files needs one as soon as one key is set."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from .doors import Doors
from .errors import InvalidApiKeyError, error_response

_HOW = "this server needs an API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"


class ApiKeys:
    """Lets a request pass if its key's digest is among those of `doors`, or its path among `open_paths`.

    Notes in the request's state `key_name`, by which logs and metrics know it, and `tenant`, by which its caches are
    kept apart: of one length, so that it can be told from what is appended to it.
    """

    def __init__(self, app: ASGIApp, doors: Doors, open_paths: frozenset[str]) -> None:
        self.app, self._doors, self.open_paths = app, doors, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self.open_paths or not self._doors.names:
            await self.app(scope, receive, send)
            return
        name = self._name(_keys(Headers(scope=scope)))
        if name is None:
            await error_response(InvalidApiKeyError(_HOW))(scope, receive, send)
            return
        tenant = hashlib.sha256(name.encode()).hexdigest()
        scope.setdefault("state", {}).update(key_name=name, tenant=tenant)
        await self.app(scope, receive, send)

    def _name(self, keys: Iterable[str]) -> str | None:
        """All digests are compared with each key, in constant time, so that timing tells nothing."""
        found: str | None = None
        for key in keys:
            digest = hashlib.sha256(key.encode("latin-1")).digest()  # the header's own bytes
            for each, name in self._doors.names.items():
                if hmac.compare_digest(digest, each):
                    found = name
        return found


def account_of(request: Request) -> str:
    """The name on whose account it is; "" where no keys are asked for."""
    account: str = request.scope["state"].get("key_name", "")
    return account


def tenant_of(request: Request) -> str:
    """Whose caches it may use; "" where no keys are asked for."""
    tenant: str = request.scope["state"].get("tenant", "")
    return tenant


def _keys(headers: Headers) -> list[str]:
    """What is sent as a key: clients of one dialect use the one header, of another the other, some both."""
    keys = [headers.get("x-api-key", "").strip()]
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        keys.append(key.strip())
    return [key for key in keys if key]
