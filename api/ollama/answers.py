"""What Ollama's paths answer, for the OpenAPI document."""

from typing import Any

from pydantic import BaseModel


class OllamaLine(BaseModel):
    """The whole answer, or the last line of a stream. Beside these stand `message` or `response`, and what it took."""

    model: str
    created_at: str
    done: bool
    done_reason: str


class OllamaDetails(BaseModel):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(BaseModel):
    models: list[OllamaModel]


class OllamaShown(BaseModel):
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(BaseModel):
    version: str


class OllamaEmbeddings(BaseModel):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
