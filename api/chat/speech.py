"""Speech: how the served model writes reasoning and calls, found in its chat template."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from ...daemon.chat_template import ChatTemplate
from ...daemon.events import EventLog
from ...daemon.tokenizer import Tokenizer
from ..tools.calls import Calls
from ..tools.formats import HARMONY, detect, read_calls
from ..tools.harmony import MESSAGE, START, harmony
from ..tools.source import ScriptReader
from .events import Reader
from .plain import PlainReader
from .reading import ChatReading
from .think import detect_tags, think
from .wish import ChatWish


class Speech:
    """One model's. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, events: EventLog) -> None:
        self.format = detect(template.source)
        self.tags = None if self.format is HARMONY else detect_tags(template.source)
        self._knows_tools = "tools" in template.source
        self._tokenizer = tokenizer
        self._events = events
        self._warned: set[str] = set()
        self.template = template.source

    @cached_property
    def control(self) -> Mapping[str, int]:
        """The ids of the control tokens, by name."""
        return {self._tokenizer.token_text(token_id): token_id for token_id in self._tokenizer.special_ids}

    @cached_property
    def _thinking_ids(self) -> tuple[int, ...]:
        return _among(self.control, (self.tags.opening, self.tags.closing) if self.tags else ())

    @cached_property
    def _calling_ids(self) -> tuple[int, ...]:
        return _among(self.control, self.format.syntax)

    def reading(self, wish: ChatWish, prompt: str) -> ChatReading:
        """What understands one choice of an answer to `prompt`."""
        calling = bool(wish.tools) and wish.tool_choice.mode != "none"
        if calling and not self._knows_tools:
            self._warn("tools_unseen", "the model's chat template does not show tools to the model")
        shown = [*self._thinking_ids, *(self._calling_ids if calling or self.format is HARMONY else ())]
        single = not wish.parallel_tool_calls or wish.tool_choice.mode == "named"
        reader = self._reader(wish, prompt, calling)
        return ChatReading(reader, self._tokenizer, shown, single=single, hide_reasoning=wish.hide_reasoning)

    def _reader(self, wish: ChatWish, prompt: str, calling: bool) -> Reader:
        calls = Calls(callable_tools(wish) if calling else {}, self.format.new_id, self._warn)
        if self.format is HARMONY:
            start = prompt.rfind(START + "assistant")
            # White space at the end would be held back, and told with the answer.
            return ScriptReader(lambda source: harmony(source, calls), prompt[start:].rstrip() if start >= 0 else "")
        inner: Reader = (
            ScriptReader(lambda source: read_calls(source, calls, self.format)) if calling else PlainReader()
        )
        tags = self.tags
        if tags is None or (wish.continue_final_message and not self.opens(prompt, wish)):
            return inner
        prefix = tags.opening if self.opens(prompt, wish) else ""
        return ScriptReader(lambda source: think(source, tags, inner), prefix)

    @property
    def reasoning_format(self) -> str | None:
        """What reasoning is told from the answer by."""
        if self.format is HARMONY:
            return self.format.name
        return None if self.tags is None else self.tags.opening

    @property
    def closing(self) -> str | None:
        """The tag that ends the model's reasoning."""
        return None if self.tags is None else self.tags.closing

    def thinks(self, wish: ChatWish, prompt: str) -> Literal["inside", "maybe", "no"]:
        """Whether an answer begins amid reasoning, may begin with it, or does not."""
        if self.format is HARMONY:
            return "no" if self.continues(prompt) else "maybe"
        if self.tags is None:
            return "no"
        if self.opens(prompt, wish):
            return "inside"
        settled = wish.continue_final_message or wish.thinking.enabled is False
        return "no" if settled or prompt.rstrip().endswith(self.tags.closing) else "maybe"

    @staticmethod
    def continues(prompt: str) -> bool:
        """Whether a prompt in harmony ends amid a message, behind its header."""
        return prompt.rfind(MESSAGE) > prompt.rfind(START) >= 0

    def opens(self, prompt: str, wish: ChatWish) -> bool:
        """Whether the prompt ends inside the model's reasoning."""
        if self.tags is None:
            return False
        if prompt.rstrip().endswith(self.tags.opening):
            return True
        content = wish.messages[-1].get("content") if wish.continue_final_message else None
        return isinstance(content, str) and content.rfind(self.tags.opening) > content.rfind(self.tags.closing)

    def _warn(self, kind: str, detail: str) -> None:
        """Once for each kind: models repeat themselves."""
        if kind not in self._warned:
            self._warned.add(kind)
            self._events.record(kind, detail)


def callable_tools(wish: ChatWish) -> Mapping[str, Mapping[str, Any]]:
    """The parameters of each tool that may be called."""
    choice = wish.tool_choice
    if choice.mode == "named":
        return {tool.name: tool.parameters for tool in wish.tools if tool.name == choice.name}
    return {tool.name: tool.parameters for tool in wish.tools if choice.allowed is None or tool.name in choice.allowed}


def _among(control: Mapping[str, int], syntax: tuple[str, ...]) -> tuple[int, ...]:
    """Ids of the control tokens of which a format's syntax is made."""
    return tuple(token_id for name, token_id in control.items() if name and any(name in text for text in syntax))
