"""API keys as bearer tokens. Every route but /health needs one as soon as one key is set."""

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import InvalidApiKeyError, error_response


class ApiKeys:
    """Lets a request pass if its key's digest is among `digests`; notes the digest as the request's tenant."""

    def __init__(self, app: ASGIApp, digests: frozenset[bytes]) -> None:
        self.app = app
        self.digests = digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health" or not self.digests:
            await self.app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()  # the header's own bytes
        # All digests are compared, in constant time each, so that timing tells nothing.
        known = sum(hmac.compare_digest(digest, each) for each in self.digests)
        if scheme.lower() != "bearer" or not known:
            error = InvalidApiKeyError("this server needs an API key: send it as 'Authorization: Bearer KEY'")
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = digest.hex()
        await self.app(scope, receive, send)
