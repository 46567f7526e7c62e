"""POST /tokenize, /detokenize and /apply-template: what a model's tokenizer and template make of texts."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..daemon.errors import InvalidRequestError
from .answering import answer
from .body import parse
from .chat.prepare import prompt_ids
from .chat.prompt import prompt_text
from .openai.chat_wish import chat_wish
from .openai.schemas import ChatRequest
from .openapi import described
from .prompts import check_length
from .sampling import check_model
from .server import Server
from .service import Service
from .token_schemas import (
    Detokenized,
    DetokenizeRequest,
    RenderedPrompt,
    TokenizeChatRequest,
    TokenizeContentRequest,
    Tokenized,
    TokenizePromptRequest,
    TokenizeRequest,
    TokenPieces,
)


def router(server: Server) -> APIRouter:
    """The tokenizer's routes of a server."""
    routes = APIRouter()

    @routes.post(
        "/tokenize",
        **described(
            body=TokenizePromptRequest | TokenizeContentRequest | TokenizeChatRequest, answer=Tokenized | TokenPieces
        ),
    )
    async def tokenize(request: Request) -> Response:
        return await _answered(server, request, _tokenized)

    @routes.post("/detokenize", **described(body=DetokenizeRequest, answer=Detokenized))
    async def detokenize(request: Request) -> Response:
        return await _answered(server, request, _detokenized)

    @routes.post("/apply-template", **described(body=ChatRequest, answer=RenderedPrompt))
    async def apply_template(request: Request) -> Response:
        return await _answered(server, request, _rendered)

    return routes


async def _answered(server: Server, request: Request, work: Callable[[Service, bytes], dict[str, Any]]) -> Response:
    def make(service: Service, raw: bytes, _tenant: str) -> Response:
        return Response(orjson.dumps(work(service, raw)), media_type="application/json")

    return await answer(server, request, make, queues=False)


def _rendered(service: Service, raw: bytes) -> dict[str, Any]:
    return {"prompt": prompt_text(service, _wish(service, raw))}


def _wish(service: Service, raw: bytes) -> Any:
    body = parse(raw, ChatRequest)
    check_model(service, body.model)
    return chat_wish(service, body)


def _tokenized(service: Service, raw: bytes) -> dict[str, Any]:
    body = parse(raw, TokenizeRequest)
    check_model(service, body.model)
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError("give one of prompt, content and messages: what is to be tokenised", "prompt")
    tokens = list(prompt_ids(service, _wish(service, raw))) if body.messages is not None else _tokens(service, body)
    told = {"count": len(tokens), "max_model_len": service.max_context}
    tokenizer = service.tokenizer
    if body.with_pieces:
        return {"tokens": [{"id": token, "piece": _piece(tokenizer.token_bytes(token))} for token in tokens], **told}
    names = [tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
    return {"tokens": tokens, "token_strs": names, **told}


def _tokens(service: Service, body: TokenizeRequest) -> list[int]:
    """Of a prompt, which gets the begin token unless it is refused, or a content, which gets it if it is asked for."""
    if body.prompt is not None:
        name, text, special = "prompt", body.prompt, body.add_special_tokens is not False
    else:
        name, text, special = "content", body.content or "", bool(body.add_special)
    check_length(service, text, name)
    return service.tokenizer.encode(text, add_special=special, parse_special=body.parse_special is not False)


def _piece(data: bytes) -> str | list[int]:
    """Its text, or its bytes where they are only a part of characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _detokenized(service: Service, raw: bytes) -> dict[str, Any]:
    body = parse(raw, DetokenizeRequest)
    check_model(service, body.model)
    if body.tokens and max(body.tokens) >= service.vocab_size:
        raise InvalidRequestError(
            f"tokens holds the id {max(body.tokens)}; ids must lie below {service.vocab_size}", "tokens"
        )
    detokenizer = service.tokenizer.detokenizer(service.tokenizer.special_ids)
    text = "".join(map(detokenizer.push, body.tokens)) + detokenizer.finish()
    return {"prompt": text, "content": text}
