"""API keys, as bearer tokens or in x-api-key. Every route but /health needs one as soon as one key is set."""

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
        digest = next((sent for sent in map(_digest, _sent_keys(Headers(scope=scope))) if self._known(sent)), None)
        if digest is None:
            error = InvalidApiKeyError(
                "this server needs an API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'"
            )
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = digest.hex()
        await self.app(scope, receive, send)

    def _known(self, digest: bytes) -> bool:
        """All digests are compared, in constant time each, so that timing tells nothing."""
        return bool(sum(hmac.compare_digest(digest, each) for each in self.digests))


def _sent_keys(headers: Headers) -> tuple[str, ...]:
    """The keys that a request carries. Anthropic's clients may send both headers, one of them stale."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    sent = (token if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))
    return tuple(key.strip() for key in sent if key.strip())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("latin-1")).digest()  # the header's own bytes
