"""The official client against a running daemon on a tiny model with a small pool of KV blocks."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest
from isotherm.daemon.runner import kv_block_bytes
from isotherm.experts.model import open_model
from openai.types.chat import ChatCompletion
from support import tiny
from support.daemon_process import Daemon, running
from support.npm_client import needs_npm_client, play

MODEL = "tiny-moe"
MESSAGES = [{"role": "user", "content": "the cat is on the mat and in the hat"}]
GREEDY = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
SEEDED = GREEDY | {"temperature": 1.5, "seed": 7}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    path = folder / f"{MODEL}.gguf"
    tiny.write_gguf(path, "mixtral", "Q4_0", max_position_embeddings=4096)
    kv_gib = 32.5 * kv_block_bytes(open_model(path).spec, "int16") / 2**30  # 32 blocks: one request of 512 tokens
    limits = ("--context", 512, "--kv-gib", kv_gib, "--max-running", 16, "--max-queued", 40)
    with running(folder, path, *limits) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture
def client(daemon: Daemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_is_left(daemon: Daemon) -> Iterator[None]:
    """After each test the daemon is idle, all blocks are free and the audit is content."""
    yield
    daemon.wait_for("isotherm_requests_running", 0)
    daemon.wait_for("isotherm_requests_waiting", 0)
    daemon.wait_for("isotherm_kv_cache_usage_ratio", 0)
    assert daemon.metrics()["isotherm_audit_failures_total"] == 0


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_answer_and_stream_are_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY)
    stream = client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_every_dialect_gives_the_same_text(daemon: Daemon, client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**GREEDY).choices[0].message.content
    response = client.responses.create(model=MODEL, input=MESSAGES, temperature=0, max_output_tokens=24)
    with anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0) as other:
        message = other.messages.create(
            model=MODEL, messages=MESSAGES, max_tokens=24, extra_body={"temperature": 0.0}, stream=False
        )
        counted = other.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    shim = ollama.Client(host=daemon.url)
    line = shim.chat(model=MODEL, messages=MESSAGES, options={"temperature": 0, "num_predict": 24})
    shim._client.close()  # it has no public way to close
    assert text == response.output_text == message.content[0].text == line.message.content
    assert text
    cached = message.usage.cache_read_input_tokens
    assert cached > 0  # the same prompt has been there before, in other words
    assert message.usage.input_tokens + cached == counted == response.usage.input_tokens == line.prompt_eval_count


@needs_npm_client
def test_the_sdk_for_javascript_gets_the_same_text(daemon: Daemon, client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 24}
    text = client.chat.completions.create(**asked).choices[0].message.content
    told = play(f"{daemon.url}/v1", "greedy", MODEL)
    assert told == [text, text]
    assert text


def test_completion_of_a_plain_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="the cat", max_tokens=8, temperature=0)
    assert answer.usage.completion_tokens <= 8
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_early_break_frees_the_request(daemon: Daemon, client: openai.OpenAI) -> None:
    """The tiny model may have written all its tokens before the client has left, so it may leave several times."""
    aborted = 'isotherm_request_finished_total{reason="abort"}'
    before = daemon.metrics().get(aborted, 0)
    options = GREEDY | {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    for _ in range(20):
        stream = client.chat.completions.create(**options, n=8, stream=True)
        next(iter(stream))
        stream.close()
        daemon.wait_for("isotherm_requests_running", 0)
        if daemon.metrics().get(aborted, 0) > before:
            return
    pytest.fail("none of 20 requests whose client left was aborted")


def test_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**GREEDY | {"model": "other"})


def test_too_long_prompt_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[5] * 600, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("question", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_neighbours_do_not_change_an_answer(question: dict[str, Any], daemon: Daemon, client: openai.OpenAI) -> None:
    alone = client.chat.completions.create(**question, logprobs=True)

    async def together() -> ChatCompletion:
        async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=60) as many:
            others = [_ask(many, i) for i in range(15)]
            answer, *_ = await asyncio.gather(many.chat.completions.create(**question, logprobs=True), *others)
            return answer

    assert asyncio.run(together()).choices == alone.choices


def test_another_seed_gives_another_text(client: openai.OpenAI) -> None:
    """Else the test above would show nothing of seeds."""
    texts = [client.chat.completions.create(**SEEDED | {"seed": seed}).choices[0].message.content for seed in (7, 8)]
    assert texts[0] != texts[1]


def test_flood_ends_in_as_many_answers(daemon: Daemon) -> None:
    async def flood() -> Counter[str]:
        async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=60) as many:
            return Counter(await asyncio.gather(*(_ask(many, i) for i in range(200))))

    ends = asyncio.run(flood())
    assert ends.total() == 200
    assert set(ends) <= {"stop", "length", "429"}
    assert ends["length"] + ends["stop"] >= 40
    assert ends["429"] > 0


async def _ask(client: openai.AsyncOpenAI, number: int) -> str:
    """One request, every other one as a stream; how it ended."""
    fields = GREEDY | {"messages": [{"role": "user", "content": f"number {number} " * (1 + number % 5)}]}
    try:
        if number % 2:
            answer = await client.chat.completions.create(**fields)
            return answer.choices[0].finish_reason
        reasons = [
            choice.finish_reason
            async for chunk in await client.chat.completions.create(**fields, stream=True)
            for choice in chunk.choices
        ]
        return next(reason for reason in reasons if reason)
    except openai.RateLimitError:
        return "429"
