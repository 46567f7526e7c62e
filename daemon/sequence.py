"""Sequence: one request on its way through the scheduler."""

from dataclasses import dataclass, field

from .kv_cache import BlockTable
from .messages import Finished, FinishReason, Submit, Usage
from .step_rows import Wish

MAX_FORCED = 32
"""Tokens that a structure may append at once without asking the model, so that a step stays short."""


@dataclass(frozen=True, slots=True)
class Follow:
    """What a token brings with it: the tokens that must come next, and whether the answer is complete after these."""

    tokens: tuple[int, ...] = ()
    complete: bool = False


NOTHING = Follow()


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens, and how far they are computed. `tokens` is the prompt and then the outputs, append-only."""

    submit: Submit
    table: BlockTable
    num_computed: int = 0
    num_cached: int | None = None  # prompt tokens found in the cache at the first admission
    ended: bool = False
    wish: Wish = field(init=False)

    def __post_init__(self) -> None:
        self.wish = Wish.of(self.submit)

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def tokens(self) -> list[int]:
        return self.table.tokens

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.submit.prompt)

    @property
    def num_output_tokens(self) -> int:
        """Also the index of the output that is sampled next."""
        return len(self.table.tokens) - len(self.submit.prompt)

    @property
    def num_behind(self) -> int:
        """Known tokens that are not computed yet; 1 for a sequence that decodes."""
        return len(self.table.tokens) - self.num_computed

    @property
    def draws(self) -> bool:
        """Whether a token is drawn once all known ones are computed."""
        return self.submit.sampling.max_tokens > 0

    @property
    def num_due(self) -> int:
        """Known tokens that the next step must compute or its stream stalls: those of a sequence that decodes, after
        its structure has forced some. None while its prompt is computed, or computed again."""
        behind = self.num_behind
        decodes = behind == 1 or (behind <= MAX_FORCED + 1 and self.num_computed >= self.num_prompt_tokens)
        return behind if decodes else 0

    def stop_reason(self, max_context: int) -> tuple[FinishReason | None, int | None]:
        """Whether the last token ends the sequence: the reason, and the token if it is a stop token.

        Before `min_tokens` outputs no token stops.
        """
        token, sampling = self.table.tokens[-1], self.submit.sampling
        is_eos = token in self.submit.eos_token_ids and not sampling.ignore_eos
        if self.num_output_tokens > sampling.min_tokens and (is_eos or token in sampling.stop_token_ids):
            return "stop", token
        if self.num_output_tokens >= sampling.max_tokens or len(self.table.tokens) >= max_context:
            return "length", None
        return None, None

    def finished(self, reason: FinishReason, stop_token: int | None = None) -> Finished:
        usage = Usage(
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=self.num_cached or 0,
            completion_tokens=self.num_output_tokens,
        )
        return Finished(request_id=self.request_id, reason=reason, usage=usage, stop_token=stop_token)
