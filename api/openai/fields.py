"""Fields that this server does not act on: refused where ignoring them would change the answer, else noted once."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ...daemon.errors import InvalidRequestError
from ...daemon.events import EventLog

# Field: values that ask for nothing, besides null, false and empty ones.
_REFUSED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": (),
    "dry_multiplier": (),
    "dynatemp_range": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "guided_whitespace_pattern": (),
    "length_penalty": (1.0,),
    "logprob_token_ids": (),
    "min_keep": (),
    "mirostat": (),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "return_tokens_as_token_ids": (),
    "suffix": (),
    "tfs_z": (1.0,),
    "top_a": (),
    "top_n_sigma": (-1, -1.0),
    "truncate_prompt_tokens": (),
    "typical_p": (1.0,),
    "use_beam_search": (),
    "web_search_options": (),
    "xtc_probability": (),
}
# Accepted in silence: they carry no wish about the text.
_HARMLESS = frozenset(
    {
        "guided_decoding_backend",
        "metadata",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "user",
        "verbosity",
    }
)
_MAX_NOTED = 50  # names; clients choose them, and other events should stay to be seen


class FieldNotes:
    """Looks through the fields that a schema does not name. Makes the first sight of an unknown one an event."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._noted: set[str] = set()

    def check(self, extra: Mapping[str, Any] | None) -> None:
        """Raises InvalidRequestError for a field that cannot be honoured."""
        for name, value in (extra or {}).items():
            if name in _REFUSED:
                if value and value not in _REFUSED[name]:
                    raise InvalidRequestError(f"{name} is not supported by this server; leave it out", name)
            elif name not in _HARMLESS:
                self._note(name)

    def unknown(self, names: Iterable[str], harmless: Container[str]) -> None:
        """Note the fields of another dialect that are not among the harmless ones."""
        for name in names:
            if name not in harmless:
                self._note(name)

    def _note(self, name: str) -> None:
        if name not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add(name)
            self._events.record("unknown_field", f"clients send {name[:80]!r}, which is ignored")
