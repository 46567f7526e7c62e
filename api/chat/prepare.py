"""From a wish to a job: the one way of every dialect into the engine."""

from dataclasses import dataclass, replace

from ...daemon.messages import Submit
from ...daemon.request import SamplingParams
from ..framing import OPENAI, Framing
from ..prompts import encode
from ..sampling import check_choices, room_for, submits
from ..service import Service
from ..stream import Job
from .dialect import Dialect, Narrator
from .form import form_of
from .prompt import prompt_text
from .reading import ChatReading
from .thought_limit import thought_limit
from .wish import ChatWish


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A checked wish, ready for the engine: `submits` and `readings` hold one for each choice."""

    submits: tuple[Submit, ...]
    readings: tuple[ChatReading, ...]
    stream: bool

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt, which all choices share."""
        return len(self.submits[0].prompt)

    def job(self, dialect: Dialect, framing: Framing = OPENAI) -> Job:
        """What an `Exchange` runs."""
        return Job(
            submits=self.submits,
            choices_per_prompt=len(self.submits),
            stream=self.stream,
            encoder=Narrator(dialect, self.readings),
            framing=framing,
            readings=self.readings,
        )


def prepare(service: Service, wish: ChatWish, tenant: str) -> Conversation:
    """Check, render and tokenise a wish. tenant: whose prefix cache it is. Raises RequestError that names the field."""
    check_choices(service, wish.n, 1)
    text = prompt_text(service, wish)
    prompt = encode(service, text, "messages", add_special=False)
    param = "messages" if wish.max_tokens is None else wish.max_tokens_param
    max_tokens = room_for(service, prompt, wish.max_tokens, None, param)
    params = SamplingParams(**wish.sampling, max_tokens=max_tokens, structure=form_of(service, wish, text))
    thoughts = thought_limit(service, wish, text)
    children = submits(service, [(prompt, params)], wish.n, tenant + wish.cache_salt, wish.priority)
    return Conversation(
        submits=tuple(replace(child, thoughts=thoughts) for child in children),
        readings=tuple(service.speech.reading(wish, text) for _ in range(wish.n)),
        stream=wish.stream,
    )


def prompt_ids(service: Service, wish: ChatWish) -> tuple[int, ...]:
    """The token ids of a wish's prompt. Raises RequestError."""
    return encode(service, prompt_text(service, wish), "messages", add_special=False)
