"""Chat messages to prompt text, by the model's own Jinja template."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..experts.errors import ModelError
from .chat_messages import normalise
from .errors import InvalidRequestError
from .template_sandbox import MAX_CHARACTERS, TemplateEnvironment, TemplateRefusal

MAX_SOURCE = 1 << 20  # characters; real templates stay below a tenth
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"}
)


class ChatTemplate:
    """One model's chat template. Safe to share between threads.

    The rendered text is encoded with control tokens recognised and without a further begin token. A message that
    spells a control token's name therefore becomes that token: templates give no way to tell the two apart.
    """

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile the template; None is a model without one. Raises ModelError if it is too long or broken."""
        self.source = source or ""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._knows_developer = source is not None and "developer" in source
        self._template = None
        if source is None:
            return
        if len(source) > MAX_SOURCE:
            raise ModelError(f"the chat template has {len(source)} characters, more than the limit of {MAX_SOURCE}")
        try:
            self._template = TemplateEnvironment().from_string(source)
        except Exception as error:  # constant expressions run while compiling, so anything may be raised
            raise ModelError(f"the model's chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation. `kwargs`, a client's chat_template_kwargs, go to the template as they are.

        Raises InvalidRequestError: for messages that are malformed or not text, for a kwarg that is reserved, with the
        template's words where it refuses, and for a model without a template.
        """
        if self._template is None:
            raise InvalidRequestError("the model has no chat template; use /v1/completions with a plain prompt")
        extra = dict(kwargs or {})
        if clash := _RESERVED & extra.keys():
            raise InvalidRequestError(f"chat_template_kwargs must not hold {min(clash)!r}", "chat_template_kwargs")
        values = {
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
            **extra,
        }
        try:
            return self._fill(messages, values)
        except InvalidRequestError:
            raise
        except TemplateRefusal as error:
            raise InvalidRequestError(f"the chat template refuses the messages: {error.message}", "messages") from error
        except Exception as error:  # a template is foreign code that may raise anything
            raise InvalidRequestError(f"the chat template fails on the messages: {error}", "messages") from error

    def _fill(self, messages: Sequence[Mapping[str, Any]], values: dict[str, Any]) -> str:
        uniform = normalise(messages, knows_developer=self._knows_developer)
        try:
            return self._collect({"messages": uniform, **values})
        except TypeError:
            if not any("tool_calls" in message for message in uniform):
                raise
        # Most templates print the arguments of tool calls as an object, some append them to a string.
        uniform = normalise(messages, knows_developer=self._knows_developer, text_arguments=True)
        return self._collect({"messages": uniform, **values})

    def _collect(self, values: dict[str, Any]) -> str:
        assert self._template is not None
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(values):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_CHARACTERS:
                raise InvalidRequestError(f"the rendered prompt exceeds {MAX_CHARACTERS} characters", "messages")
        return "".join(pieces)
