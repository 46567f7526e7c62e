"""GET /ui and the files of the dashboard. They are the same for everybody and hold no data, so they need no key; what
the page shows it asks of the other routes, with the key."""

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .assets import GUARDS, PREFIX, Asset

DOOR = "/ui"


def open_paths(assets: Mapping[str, Asset]) -> frozenset[str]:
    """Every path that answers without a key."""
    return frozenset({DOOR, *assets})


def router(assets: Mapping[str, Asset]) -> APIRouter:
    """The routes of the dashboard's files."""
    routes = APIRouter(include_in_schema=False)

    @routes.head(DOOR)
    @routes.get(DOOR)
    async def door() -> Response:
        return RedirectResponse(PREFIX.removeprefix("/"), 308, GUARDS)  # relative, for a proxy that adds a prefix

    @routes.head(PREFIX + "{name:path}")
    @routes.get(PREFIX + "{name:path}")
    async def file(request: Request) -> Response:
        asset = assets.get(request.scope["path"])
        if asset is None:
            raise HTTPException(404)
        headers = {**GUARDS, "etag": asset.tag}
        if asset.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)

    return routes
