"""ModelLoader and Hosted on tiny models: they serve, and give all their memory back."""

import weakref

import psutil
import pytest
from isotherm.daemon.assembly import Assembly
from isotherm.daemon.config import Config
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.host import Hosted, ModelLoader
from isotherm.daemon.memory import GIB, MemoryPlanError
from isotherm.daemon.messages import Finished
from support import tiny
from support.serving import make_submit

pytestmark = pytest.mark.usefixtures("own_folders", "thawed")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Config]:
    folder = tmp_path_factory.mktemp("models")
    configs = {}
    for name, architecture in (("one", "mixtral"), ("two", "qwen3_moe")):
        path = folder / f"{name}.gguf"
        tiny.write_gguf(path, architecture, "Q4_0", max_position_embeddings=512)
        configs[name] = Config(model=path, threads=2, kv_gib=0.05, context=512)
    return configs


def loader_of(models: dict[str, Config]) -> ModelLoader[str]:
    return ModelLoader(models, EventLog(), lambda name, assembly: name)


def unseen(stage: str, done: int, total: int) -> None:
    pass


def answer(assembly: Assembly) -> list[int]:
    mailbox = assembly.engine.client.submit(make_submit("a", [1, 2, 3], max_tokens=5))
    *tokens, end = mailbox
    assert isinstance(end, Finished)
    return [token.token_id for token in tokens]


def test_nothing_of_a_closed_model_is_left(models: dict[str, Config]) -> None:
    loader = loader_of(models)
    hosted = loader.load("one", unseen)
    answer(hosted.assembly)
    runner = hosted.assembly.runner
    arena = next(iter(runner._cache._layers.values())).base
    parts = (runner, runner._weights.vectors["final_norm"], runner.team, hosted.assembly.engine, arena)
    left = [weakref.ref(each) for each in parts]
    hosted.close()
    del runner, arena, parts, hosted
    loader.tidy()
    assert [each() for each in left] == [None] * len(left)


def test_swapping_models_does_not_grow_the_process(models: dict[str, Config]) -> None:
    """Each has 50 MiB of keys and values, all of which are written."""
    loader, sizes, answers = loader_of(models), [], {"one": [], "two": []}
    for turn in range(22):
        name = ("one", "two")[turn % 2]
        hosted: Hosted[str] = loader.load(name, unseen)
        hosted.assembly.runner.fill_cache()
        assert hosted.service == name
        answers[name].append(answer(hosted.assembly))
        hosted.close()
        del hosted
        loader.tidy()
        sizes.append(psutil.Process().memory_info().rss)
    assert max(sizes[4:]) - sizes[3] < 25 << 20
    assert all(each == given[0] for given in answers.values() for each in given)
    assert answers["one"][0] != answers["two"][0]


def test_demand_tells_whether_memory_suffices_before_a_weight_is_read(models: dict[str, Config]) -> None:
    enough = loader_of(models).demand("one")
    enough(2 * GIB)
    with pytest.raises(MemoryPlanError, match="packed weights need"):
        enough(1 << 20)


def test_events_of_several_models_say_which(models: dict[str, Config]) -> None:
    events = EventLog()
    loader = ModelLoader(models, events, lambda name, assembly: assembly.engine.events.record("told", "it is slow"))
    loader.assembled("two", unseen).close()
    assert [(event.name, event.detail) for event in events.recent() if event.name == "told"] == [
        ("told", "two: it is slow")
    ]
