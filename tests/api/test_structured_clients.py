"""Clients that make objects of answers, against a running server with a real engine on a fake model."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import httpx
import pytest
from pydantic import BaseModel
from support.agents import Picture, form_server
from support.api_service import MODEL


class Mood(BaseModel):
    mood: Literal["good", "bad"]
    sure: bool


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with form_server() as root:
        yield root


@pytest.fixture
def url(root: str) -> str:
    return f"{root}/v1"


def test_the_openai_client_parses_whole_answers_and_streams(url: str) -> None:
    from openai import OpenAI

    messages = [{"role": "user", "content": "hello"}]
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        asked = {"model": MODEL, "messages": messages, "response_format": Picture, "seed": 3}
        whole = client.chat.completions.parse(**asked)
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion()
    assert isinstance(whole.choices[0].message.parsed, Picture)
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


def test_the_openai_client_parses_responses_and_their_streams(url: str) -> None:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        asked = {"model": MODEL, "input": "hello", "text_format": Picture, "extra_body": {"seed": 4}}
        whole = client.responses.parse(**asked)
        with client.responses.stream(**asked) as stream:
            streamed = stream.get_final_response()
    assert isinstance(whole.output_parsed, Picture)
    assert streamed.output_parsed == whole.output_parsed


def test_the_anthropic_client_parses_whole_answers_and_streams(root: str) -> None:
    """It sends neither patterns nor bounds, and checks them itself: only what it sends can be kept."""
    from anthropic import Anthropic

    messages = [{"role": "user", "content": "hello"}]
    with Anthropic(base_url=root, api_key="none", max_retries=0) as client:
        asked = {"model": MODEL, "messages": messages, "max_tokens": 300, "output_format": Mood}
        whole = client.messages.parse(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    assert isinstance(whole.parsed_output, Mood)
    assert isinstance(streamed.parsed_output, Mood)


def test_ollama_s_client_gets_what_fits(root: str) -> None:
    from ollama import Client

    messages = [{"role": "user", "content": "hello"}]
    asked = {"model": MODEL, "messages": messages, "format": Picture.model_json_schema(), "options": {"seed": 7}}
    client = Client(host=root)
    whole = client.chat(**asked).message.content
    streamed = "".join(part.message.content for part in client.chat(**asked, stream=True))
    client._client.close()  # it has no public way to close
    Picture.model_validate_json(whole)
    assert streamed == whole


def test_pydantic_ai_gets_its_object(url: str) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> Picture:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, output_type=NativeOutput(Picture), model_settings={"seed": 5})
            return (await agent.run("hello")).output

    assert isinstance(asyncio.run(run()), Picture)


def test_langchain_gets_its_object(url: str) -> None:
    from langchain_openai import ChatOpenAI

    with httpx.Client() as http:
        model = ChatOpenAI(model=MODEL, base_url=url, api_key="none", seed=6, max_retries=0, http_client=http)
        assert isinstance(model.with_structured_output(Picture, method="json_schema").invoke("hello"), Picture)
