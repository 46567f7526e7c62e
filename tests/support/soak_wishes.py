"""What clients of a soak ask, in every dialect: tools, forms, reasoning, scores, embeddings; and how streams end."""

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

from support.api_service import CHAT, COMPLETIONS, TEMPLATE

HERMES = "{# tools <tool_call> <think> </think> #}" + TEMPLATE
RESPONSES, MESSAGES, OLLAMA_CHAT, GENERATE = "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"
_ENDS = {
    CHAT: (b"data: [DONE]",),
    COMPLETIONS: (b"data: [DONE]",),
    RESPONSES: (b"event: response.completed", b"event: response.incomplete", b"event: response.failed"),
    MESSAGES: (b"event: message_stop", b"event: error"),
    OLLAMA_CHAT: (b'"done":true', b'{"error":'),
    GENERATE: (b'"done":true', b'{"error":'),
}


@dataclass(frozen=True, slots=True)
class Ask:
    """A body for a path."""

    path: str
    body: dict[str, Any]


def ends_well(path: str, text: bytes) -> bool:
    """Whether a stream has its end, and has it once."""
    return sum(text.count(end) for end in _ENDS[path]) == 1


class Wishes:
    """All follows from `draw`. responses: ids that /v1/responses has given, some of them forgotten by now."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.responses: deque[str] = deque(maxlen=20)

    def next(self, *, stream: bool, max_tokens: int | None = None) -> Ask:
        """A request for an answer, in any dialect."""
        make = self._draw.choice(
            (self.completion, self.completion, self.chat, self.chat, self.response, self.anthropic, self.ollama)
        )
        return make(stream, max_tokens or self._draw.randrange(1, 40))

    def aside(self) -> Ask:
        """A request that draws no token."""
        draw = self._draw
        return draw.choice(
            (
                Ask("/v1/embeddings", {"input": [self._text() for _ in range(draw.randrange(1, 12))]}),
                Ask("/api/embed", {"model": "org/tiny-moe", "input": self._text()}),
                Ask("/tokenize", {"prompt": self._text()}),
                Ask("/detokenize", {"tokens": [draw.randrange(258) for _ in range(9)]}),
                Ask("/apply-template", {"messages": self._messages()}),
                Ask("/v1/messages/count_tokens", {"messages": self._messages()}),
                Ask(COMPLETIONS, {"prompt": self._text(), "echo": True, "logprobs": 2, "max_tokens": 0}),
                Ask(f"{RESPONSES}/{self._known() or 'resp_none'}/cancel", {}),
            )
        )

    def completion(self, stream: bool, max_tokens: int) -> Ask:
        """With all that sampling can do."""
        draw = self._draw
        wish: dict[str, Any] = {
            "prompt": self._text(),
            "stream": stream,
            "max_tokens": max_tokens,
            "n": draw.choice((1, 1, 1, 3)),
            "ignore_eos": draw.random() < 0.5,
            "stop": draw.choice((None, "a")),
            "priority": draw.choice((None, -1, 5)),
        }
        more: tuple[dict[str, Any], ...] = (
            {},
            {"logprobs": 3},
            {"echo": True, "logprobs": 1},
            {"logit_bias": {"97": 5}, "min_p": 0.1, "repetition_penalty": 1.2},
            {"guided_regex": "[a-c]{1,20}"},
            {"structured_outputs": {"choice": ["yes", "no", f"maybe {draw.randrange(300)}"]}},
            {"stream_options": {"include_usage": True}} if stream else {},
        )
        return Ask(COMPLETIONS, wish | draw.choice(more))

    def chat(self, stream: bool, max_tokens: int) -> Ask:
        """With tools, forms and reasoning."""
        wish = {"messages": self._messages(), "stream": stream, "max_tokens": max_tokens}
        functions = [{"type": "function", "function": {"name": "add", "parameters": self._schema()}}]
        schema = {"name": "form", "schema": self._schema(), "strict": True}
        more: tuple[dict[str, Any], ...] = (
            {"n": 2, "logprobs": True, "top_logprobs": 2},
            {"tools": functions},
            {"tools": functions, "tool_choice": "required", "max_tokens": 120},
            {"response_format": {"type": "json_schema", "json_schema": schema}},
            {"response_format": {"type": "json_object"}},
            {"stop": ["a", "bc"], "chat_template_kwargs": {"enable_thinking": False}},
        )
        return Ask(CHAT, wish | self._draw.choice(more))

    def response(self, stream: bool, max_tokens: int) -> Ask:
        """Kept or not, some going on from another."""
        draw = self._draw
        wish: dict[str, Any] = {"input": self._text(), "stream": stream, "max_output_tokens": max_tokens}
        form = {"format": {"type": "json_schema", "name": "form", "schema": self._schema()}}
        more: tuple[dict[str, Any], ...] = (
            {},
            {"store": False},
            {"text": form},
            {"tools": [{"type": "function", "name": "add", "parameters": self._schema()}]},
            {"previous_response_id": self._known(), "truncation": "auto"},
        )
        return Ask(RESPONSES, wish | draw.choice(more))

    def anthropic(self, stream: bool, max_tokens: int) -> Ask:
        """With tools, forms and thinking."""
        wish = {"messages": self._messages(), "stream": stream, "max_tokens": max_tokens}
        tools = [{"name": "add", "input_schema": self._schema()}]
        more: tuple[dict[str, Any], ...] = (
            {"system": "short", "stop_sequences": ["a"]},
            {"tools": tools},
            {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 120},
            {"output_config": {"format": {"type": "json_schema", "schema": self._schema()}}},
        )
        return Ask(MESSAGES, wish | self._draw.choice(more))

    def ollama(self, stream: bool, max_tokens: int) -> Ask:
        """Both ways to ask."""
        draw = self._draw
        wish: dict[str, Any] = {
            "model": "org/tiny-moe",
            "stream": stream,
            "options": {"num_predict": max_tokens, "seed": 3},
            "format": draw.choice((None, None, "json", self._schema())),
        }
        if draw.random() < 0.5:
            return Ask(GENERATE, wish | {"prompt": self._text()})
        return Ask(OLLAMA_CHAT, wish | {"messages": self._messages()})

    def _known(self) -> str | None:
        return self._draw.choice(self.responses) if self.responses else None

    def _messages(self) -> list[dict[str, Any]]:
        roles = ("user", "assistant", "user")[-self._draw.choice((1, 1, 3)) :]
        return [{"role": role, "content": self._text(12)} for role in roles]

    def _text(self, most: int = 40) -> str:
        return f"{self._draw.randrange(6)} " * self._draw.randrange(1, most)

    def _schema(self) -> dict[str, Any]:
        """One of a few hundred, so that no cache holds them all for nothing."""
        name = f"f{self._draw.randrange(300)}"
        return {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}
