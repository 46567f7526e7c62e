"""StepBudget: how many prefill tokens may join a step so that running streams do not stall."""

FLOOR = 16  # prefill tokens: less would not pay for reading the weights

_SMOOTHING = 0.2  # share of a new observation in the running means
_DECAY = 0.98  # per step, of the window over which the prompt rate is measured


class StepBudget:
    """Learns the seconds of a decode step and of a prefill token from past steps.

    target_s: seconds that a step with decoders should take. max_tokens: upper limit of prefill tokens of any step.
    """

    def __init__(self, target_s: float, max_tokens: int) -> None:
        if not target_s > 0 or max_tokens < 1:
            raise ValueError(f"target_s {target_s} and max_tokens {max_tokens} must be positive")
        self.target_s = target_s
        self.max_tokens = max_tokens
        self.seconds_per_decode_step: float | None = None
        self.seconds_per_prefill_token: float | None = None
        self._recent_prefill_tokens = 0.0
        self._recent_seconds = 0.0

    def observe(self, num_prefill_tokens: int, num_decode_tokens: int, seconds: float) -> None:
        """Learn from one step that took `seconds`."""
        self._recent_prefill_tokens = self._recent_prefill_tokens * _DECAY + num_prefill_tokens
        self._recent_seconds = self._recent_seconds * _DECAY + seconds
        if num_prefill_tokens == 0:
            self.seconds_per_decode_step = _blend(self.seconds_per_decode_step, seconds)
            return
        decode_s = (self.seconds_per_decode_step or 0.0) if num_decode_tokens else 0.0
        share = max(seconds - decode_s, 0.0) / num_prefill_tokens
        self.seconds_per_prefill_token = _blend(self.seconds_per_prefill_token, share)

    def prefill_tokens(self, num_decoders: int) -> int:
        """Prefill tokens that may join a step with `num_decoders` decoding sequences."""
        if num_decoders == 0:
            return self.max_tokens
        if self.seconds_per_prefill_token is None:
            return min(FLOOR, self.max_tokens)
        room_s = self.target_s - (self.seconds_per_decode_step or 0.0)
        if room_s >= self.max_tokens * self.seconds_per_prefill_token:
            return self.max_tokens
        # Without room the time of a token does not matter; it may have been measured as nothing.
        tokens = int(room_s / self.seconds_per_prefill_token) // FLOOR * FLOOR if room_s > 0 else 0
        return min(max(tokens, FLOOR), self.max_tokens)

    @property
    def prefill_rate(self) -> float | None:
        """Prefill tokens per second over the recent steps, decode steps included; None before any was seen."""
        if self._recent_prefill_tokens > 0 and self._recent_seconds > 0:
            return self._recent_prefill_tokens / self._recent_seconds
        return None


def _blend(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _SMOOTHING * (value - mean)
