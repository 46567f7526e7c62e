"""Clients that make objects of answers, against a running server with a real engine on a fake model."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from isotherm.daemon.structures import Structures
from pydantic import BaseModel, Field
from support.api_service import MODEL, make_service, serving
from support.engine_runs import make_engine, running
from support.fake_runner import FakeRunner
from support.scripted_engine import VOCAB_SIZE, ByteTokenizer


class Size(BaseModel):
    width: int = Field(ge=1, le=9)
    height: int = Field(ge=1, le=9)


class Picture(BaseModel):
    title: str = Field(pattern="^[a-z]{1,8}$")
    colours: list[bool] = Field(max_length=3)
    size: Size | None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    engine = make_engine(FakeRunner(vocab_size=VOCAB_SIZE, num_blocks=400, max_context=400))
    with running(engine), serving(make_service(engine.client, structures=Structures(ByteTokenizer()))) as port:
        yield f"http://127.0.0.1:{port}/v1"


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


def test_pydantic_ai_gets_its_object(url: str) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def run() -> Picture:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, output_type=NativeOutput(Picture), model_settings={"seed": 5})
            return (await agent.run("hello")).output

    assert isinstance(asyncio.run(run()), Picture)


def test_langchain_gets_its_object(url: str) -> None:
    from langchain_openai import ChatOpenAI

    with httpx.Client() as http:
        model = ChatOpenAI(model=MODEL, base_url=url, api_key="none", seed=6, max_retries=0, http_client=http)
        assert isinstance(model.with_structured_output(Picture, method="json_schema").invoke("hello"), Picture)
