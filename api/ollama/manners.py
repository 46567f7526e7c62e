"""How Ollama's clients name models, and what their streams are told while one is loaded."""

from dataclasses import replace

from ..framing import Framing
from ..manners import Manners
from .dialect import Wrap, chat_message, generated, now
from .framing import framing_with
from .names import plain_name

MANNERS = Manners(plain=plain_name, any_type=True)


def _streaming(wrap: Wrap) -> Manners:
    def framing(model: str) -> Framing:
        return framing_with({"model": model, "created_at": now(), **wrap({}), "done": False})

    return replace(MANNERS, framing=framing, streams=True)


CHAT, GENERATE = _streaming(chat_message), _streaming(generated)
