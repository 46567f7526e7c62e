"""create_app: the HTTP side of one service as an ASGI application."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from . import accelerators, admin, rebalance
from .auth import ApiKeys
from .cors import cors_settings
from .errors import HANDLED, handle_error
from .middleware import BodyLimit, SafetyNet
from .openai import chat, completions, models
from .openai.fields import FieldNotes
from .recording import Recording
from .service import Service


def create_app(service: Service) -> FastAPI:
    """The application. It holds no state beyond the service and a memory of unknown field names."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    notes = FieldNotes(service.events)
    app.include_router(chat.router(service, notes))
    app.include_router(completions.router(service, notes))
    app.include_router(models.router(service))
    app.include_router(admin.router(service))
    app.include_router(accelerators.router(service))
    app.include_router(rebalance.router(service))
    for kind in HANDLED:
        app.add_exception_handler(kind, handle_error)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, limits=service.limits)
    app.add_middleware(ApiKeys, digests=service.api_keys, names=service.key_names)
    app.add_middleware(SafetyNet)
    if service.cors_origins:  # its answers to browsers that ask first need no key
        app.add_middleware(CORSMiddleware, **cors_settings(service.cors_origins))
    app.add_middleware(Recording, sinks=service.sinks)
    return app
