"""How long the model may reason, where a client bounds it."""

from ...daemon.errors import InvalidRequestError
from ...daemon.thoughts import ThoughtLimit
from ..service import Service
from ..tools.formats import HARMONY
from .wish import ChatWish


def thought_limit(service: Service, wish: ChatWish, prompt: str) -> ThoughtLimit | None:
    """The bound on the reasoning of an answer to `prompt`; None without one, or where there is nothing to bound.

    Raises InvalidRequestError for a client that insists on it, if the model's format gives no way to end reasoning.
    """
    budget, param, speech = wish.thinking.budget, wish.thinking.budget_param, service.speech
    if budget is None:
        return None
    if speech.format is HARMONY and param:
        problem = f"{param} is not supported for this model, whose reasoning has no end tag; reasoning_effort may do"
        raise InvalidRequestError(problem, param)
    thinks = speech.thinks(wish, prompt)
    if speech.tags is None or thinks == "no":
        return None
    return ThoughtLimit(
        tokens=budget,
        opening=b"" if thinks == "inside" else speech.tags.opening.encode(),
        closing=speech.tags.closing.encode(),
        closing_ids=tuple(service.tokenizer.encode(speech.tags.closing, add_special=False)),
        token_bytes=service.tokenizer.token_bytes,
    )
