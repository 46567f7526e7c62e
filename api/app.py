"""create_app: the HTTP side of a server as an ASGI application."""

from fastapi import FastAPI

from . import accelerators, admin, openapi, plans, rebalance, tokens
from .anthropic import messages
from .anthropic.framing import ERROR_SHAPE as ANTHROPIC
from .auth import ApiKeys
from .doors import Cors
from .error_shapes import ErrorShapes
from .errors import HANDLED, handle_error
from .fields import FieldNotes
from .holding import Holding
from .middleware import BodyLimit, SafetyNet
from .ollama import embed, generation
from .ollama import models as ollama_models
from .ollama.framing import ERROR_SHAPE as OLLAMA
from .openai import chat, completions, embeddings, models
from .recording import Recording
from .responses import routes as responses
from .server import Server
from .ui import assets as ui_assets
from .ui import routes as ui


def create_app(server: Server) -> FastAPI:
    """The application. Beside the server it holds a memory of unknown field names, and the responses that are kept."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, responses=openapi.FAILURES)
    notes, pages = FieldNotes(server.events), ui_assets.read_assets()
    app.include_router(chat.router(server, notes))
    app.include_router(completions.router(server, notes))
    app.include_router(embeddings.router(server, notes))
    app.include_router(models.router(server))
    app.include_router(tokens.router(server))
    app.include_router(responses.router(server, notes))
    app.include_router(messages.router(server, notes))
    app.include_router(generation.router(server, notes))
    app.include_router(embed.router(server, notes))
    app.include_router(ollama_models.router(server))
    app.include_router(admin.router(server))
    app.include_router(accelerators.router(server))
    app.include_router(rebalance.router(server))
    app.include_router(plans.router(server))
    app.include_router(ui.router(pages))
    app.include_router(openapi.router(app))
    for kind in HANDLED:
        app.add_exception_handler(kind, handle_error)
    # The last one added is the outermost.
    app.add_middleware(Holding)
    app.add_middleware(BodyLimit, limits=server.limits)
    open_paths = frozenset({"/health"}) | ui.open_paths(pages)
    app.add_middleware(ApiKeys, doors=server.doors, open_paths=open_paths)
    app.add_middleware(SafetyNet)
    app.add_middleware(Cors, doors=server.doors)
    app.add_middleware(ErrorShapes, shapes=(ANTHROPIC, OLLAMA))
    app.add_middleware(Recording, sinks=server.sinks)
    return app
