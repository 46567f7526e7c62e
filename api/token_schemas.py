"""What clients send to the tokenizer's routes, and what they get."""

from pydantic import BaseModel, ConfigDict, Field

from .openai.schemas import Messages, TokenId


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: str | None = None


class TokenizePromptRequest(_Body):
    """A prompt, which gets the model's begin token where it has one."""

    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeContentRequest(_Body):
    """A text, which gets the begin token if `add_special` says so. parse_special: names of control tokens in it become
    these tokens."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenizeChatRequest(_Body):
    """A conversation, as for /v1/chat/completions."""

    messages: Messages
    return_token_strs: bool | None = None


class TokenizeRequest(_Body):
    """Any of these."""

    prompt: str | None = None
    content: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(_Body):
    tokens: list[TokenId]


class Tokenized(BaseModel):
    tokens: list[int]
    token_strs: list[str] | None
    count: int
    max_model_len: int


class TokenPiece(BaseModel):
    """piece: its text, or its bytes where these are a part of characters only."""

    id: int
    piece: str | list[int]


class TokenPieces(BaseModel):
    tokens: list[TokenPiece]
    count: int
    max_model_len: int


class Detokenized(BaseModel):
    """The text, by the two names in use."""

    prompt: str
    content: str


class RenderedPrompt(BaseModel):
    prompt: str = Field(description="What the model's template makes of the conversation.")
