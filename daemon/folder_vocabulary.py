"""A Vocabulary from the tokenizer files of a Hugging Face checkpoint folder."""

import json
from pathlib import Path
from typing import Any

import tokenizers

from ..experts.errors import CheckpointError, UnsupportedModelError
from .vocabulary import Vocabulary, byte_level_bytes, end_tokens, is_byte_token, sentencepiece_bytes


def read_folder(folder: Path) -> Vocabulary:
    """Read tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja.

    Only tokenizer.json must exist. Raises CheckpointError for a missing or broken file, UnsupportedModelError for a
    decoder that is neither byte-level nor SentencePiece.
    """
    encoder = _load_encoder(folder / "tokenizer.json")
    config = _read_json(folder / "tokenizer_config.json")
    added = encoder.get_added_tokens_decoder()
    special = frozenset(token_id for token_id, token in added.items() if token.special)
    tokens = _token_list(encoder, folder)
    bos, eos = (_named_token(encoder, config, name, folder) for name in ("bos_token", "eos_token"))
    names = end_tokens(tokens)
    ends = {token_id for token_id in special if tokens[token_id] in names}
    ends |= {eos} if eos is not None else set()
    for name in ("generation_config.json", "config.json"):
        ends |= _end_ids(_read_json(folder / name), folder / name)
    return Vocabulary(
        encoder=encoder,
        token_bytes=_token_bytes(encoder, tokens, frozenset(added), folder),
        special_ids=special,
        bos_id=bos,
        eos_id=eos,
        eos_ids=frozenset(ends),
        chat_template=_chat_template(folder, config),
    )


def _load_encoder(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        remedy = "copy it from where the model comes from"
        if _has_sentencepiece(path):
            remedy = "it has tokenizer.model: save that again as a fast tokenizer"
        raise CheckpointError(f"{path.parent} has no tokenizer.json; {remedy}")
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of broken file
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    # Both would cut or fill prompts behind the caller's back.
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _has_sentencepiece(path: Path) -> bool:
    return (path.parent / "tokenizer.model").is_file()


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an absent file is an empty object."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content


def _token_list(encoder: tokenizers.Tokenizer, folder: Path) -> list[str]:
    """Token names by id; ids that no token has are empty."""
    ids = encoder.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids.values(), default=-1) + 1)
    for token, token_id in ids.items():
        if tokens[token_id]:  # the library would encode to both and decode to one
            raise CheckpointError(
                f"{folder / 'tokenizer.json'} contradicts itself: {tokens[token_id]!r} and {token!r} both are token "
                f"{token_id}; download the model again"
            )
        tokens[token_id] = token
    return tokens


def _token_bytes(encoder: tokenizers.Tokenizer, tokens: list[str], added: frozenset[int], folder: Path) -> list[bytes]:
    decoder = json.loads(encoder.to_str())["decoder"]
    kinds = {step["type"] for step in _flatten(decoder)}
    if "ByteLevel" in kinds:
        return byte_level_bytes(tokens, added)
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        fallback = "ByteFallback" in kinds
        byte_ids = {i for i, token in enumerate(tokens) if fallback and i not in added and is_byte_token(token)}
        return sentencepiece_bytes(tokens, added, frozenset(byte_ids))
    raise UnsupportedModelError(
        f"{folder / 'tokenizer.json'} decodes by {sorted(kinds) or 'nothing'}; implemented are byte-level BPE and "
        "SentencePiece"
    )


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flatten(part)]
    return [decoder]


def _named_token(encoder: tokenizers.Tokenizer, config: dict[str, Any], name: str, folder: Path) -> int | None:
    value = config.get(name)
    content = value.get("content") if isinstance(value, dict) else value
    if content is None:
        return None
    token_id = encoder.token_to_id(content) if isinstance(content, str) else None
    if token_id is None:
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: {name} {content!r} is not in the vocabulary")
    return token_id


def _end_ids(config: dict[str, Any], path: Path) -> set[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise CheckpointError(f"{path}: eos_token_id {value!r} is neither a token id nor a list of them")
    return set(ids)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The template's own file wins; tokenizer_config.json may hold one, or several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    value = config.get("chat_template")
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}.get("default")
    if value is not None and not isinstance(value, str):
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: chat_template is not a string")
    return value
