"""Fields of OpenAI's endpoints, and of servers like them, that this one does not act on. See `api.fields`."""

# Field: values that ask for nothing, besides null, false and empty ones.
REFUSED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": (),
    "dry_multiplier": (),
    "dynatemp_range": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logprob_token_ids": (),
    "min_keep": (),
    "mirostat": (),
    "modalities": (["text"],),
    "post_sampling_probs": (),
    "prompt_embeds": (),
    "repeat_last_n": (-1,),
    "return_tokens_as_token_ids": (),
    "samplers": (),
    "suffix": (),
    "t_max_predict_ms": (-1,),
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
HARMLESS = frozenset(
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
