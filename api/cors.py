"""What browsers are told of requests from other sites' pages."""

from collections.abc import Sequence
from typing import Any

_METHODS = ("GET", "POST", "DELETE")
_TOLD = ("x-request-id", "retry-after", "x-should-retry")  # headers that pages may read
_REMEMBERED_S = 600


def cors_settings(origins: Sequence[str]) -> dict[str, Any]:
    """Of Starlette's middleware. A page sends its key itself: cookies and the like are never let through."""
    return {
        "allow_origins": list(origins),
        "allow_methods": list(_METHODS),
        "allow_headers": ["*"],
        "expose_headers": list(_TOLD),
        "max_age": _REMEMBERED_S,
    }
