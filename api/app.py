"""create_app: the HTTP side of one service as an ASGI application."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from . import accelerators, admin, openapi, plans, rebalance, tokens
from .anthropic import messages
from .anthropic.framing import ERROR_SHAPE as ANTHROPIC
from .auth import ApiKeys
from .cors import cors_settings
from .error_shapes import ErrorShapes
from .errors import HANDLED, handle_error
from .fields import FieldNotes
from .middleware import BodyLimit, SafetyNet
from .ollama import embed, generation
from .ollama import models as ollama_models
from .ollama.framing import ERROR_SHAPE as OLLAMA
from .openai import chat, completions, embeddings, models
from .recording import Recording
from .responses import routes as responses
from .service import Service
from .ui import assets as ui_assets
from .ui import routes as ui


def create_app(service: Service) -> FastAPI:
    """The application. Beside the service it holds a memory of unknown field names, and the responses that are kept."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, responses=openapi.FAILURES)
    notes, pages = FieldNotes(service.events), ui_assets.read_assets()
    app.include_router(chat.router(service, notes))
    app.include_router(completions.router(service, notes))
    app.include_router(embeddings.router(service, notes))
    app.include_router(models.router(service))
    app.include_router(tokens.router(service))
    app.include_router(responses.router(service, notes))
    app.include_router(messages.router(service, notes))
    app.include_router(generation.router(service, notes))
    app.include_router(embed.router(service, notes))
    app.include_router(ollama_models.router(service))
    app.include_router(admin.router(service))
    app.include_router(accelerators.router(service))
    app.include_router(rebalance.router(service))
    app.include_router(plans.router(service))
    app.include_router(ui.router(pages))
    app.include_router(openapi.router(app))
    for kind in HANDLED:
        app.add_exception_handler(kind, handle_error)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, limits=service.limits)
    open_paths = frozenset({"/health"}) | ui.open_paths(pages)
    app.add_middleware(ApiKeys, digests=service.api_keys, names=service.key_names, open_paths=open_paths)
    app.add_middleware(SafetyNet)
    if service.cors_origins:  # its answers to browsers that ask first need no key
        app.add_middleware(CORSMiddleware, **cors_settings(service.cors_origins))
    app.add_middleware(ErrorShapes, shapes=(ANTHROPIC, OLLAMA))
    app.add_middleware(Recording, sinks=service.sinks)
    return app
