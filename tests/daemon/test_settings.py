"""Settings by file and flags: what comes of both, where it comes from, and what is refused."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isotherm.daemon.cli.app import app
from isotherm.daemon.config import Config, ConfigError
from isotherm.daemon.settings.file import find_file, read_file
from isotherm.daemon.settings.keys import KEYS, TABLES, keys_of
from isotherm.daemon.settings.sample import as_toml, sample
from isotherm.daemon.settings.settings import Settings, Told, differing, gather
from support.cli import run
from typer.main import get_command

pytestmark = pytest.mark.usefixtures("own_folders")

FILE = """
[server]
port = 9000
api_key_file = "keys.txt"
[engine]
threads = 3
[model]
context = 4096
[pool]
default = "big"
keep_s = 60
[models.small]
path = "small.gguf"
[models.big]
path = "/models/big.gguf"
context = 8192
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def gathered(path: Path | None, *models: str, **flags: Any) -> Settings:
    return gather(Told(flags=flags, models=tuple(map(Path, models)), file=path), {})


def test_every_setting_has_a_key_and_every_key_a_setting() -> None:
    fields = set(Config.__dataclass_fields__)
    assert {key.field for key in KEYS} == fields - {"name", "model"}
    assert len({key.path for key in KEYS}) == len(KEYS)


def test_every_flag_of_a_key_is_one_of_serve() -> None:
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
    assert {key.flag for key in KEYS if key.flag} <= flags
    assert len(flags - {"--help"}) < 25


def test_a_file_says_what_is_served(tmp_path: Path) -> None:
    settings = gathered(write(tmp_path, FILE))
    assert list(settings.models) == ["big", "small"]
    big, small = settings.models.values()
    assert (big.model, big.context, big.threads, big.port, big.keep_s) == (Path("/models/big.gguf"), 8192, 3, 9000, 60)
    assert (small.model, small.context, small.kv_cache) == (tmp_path / "small.gguf", 4096, "int16")
    assert big.api_key_file == tmp_path / "keys.txt"


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    settings = gathered(write(tmp_path, FILE), context=1024, threads=1)
    assert {(config.context, config.threads, config.port) for config in settings.models.values()} == {(1024, 1, 9000)}
    assert settings.origins["context"] == "--context"
    assert settings.origins["port"] == f"{tmp_path / 'config.toml'} [server]"


@pytest.mark.parametrize(("flags", "name"), [({}, "context in [model] is 99"), ({"context": 99}, "--context is 99")])
def test_what_is_found_out_later_is_told_by_key_or_by_flag(tmp_path: Path, flags: dict[str, int], name: str) -> None:
    settings = gathered(write(tmp_path, FILE), "small", **flags)
    with pytest.raises(ConfigError) as error, settings.own_words():
        raise ConfigError("--context is 99, --threads is 3, --host is 7")
    assert str(error.value) == f"{name}, threads in [engine] is 3, --host is 7"


def test_models_on_the_command_line_are_those_that_are_served(tmp_path: Path) -> None:
    settings = gathered(write(tmp_path, FILE), "small", "other.gguf")
    assert [(name, config.model) for name, config in settings.models.items()] == [
        ("small", tmp_path / "small.gguf"),
        ("other", Path("other.gguf")),
    ]


def test_a_pulled_model_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    path = write(tmp_path, "[models.a]\npath = 'owner/repo:Q4_0'\n[models.b]\npath = 'here'")
    paths = [config.model for config in gathered(path).models.values()]
    assert paths == [Path("owner/repo:Q4_0"), tmp_path / "here"]


def test_without_a_file_there_are_defaults_and_the_demo_model() -> None:
    settings = gathered(None)
    assert list(settings.models) == ["isotherm-demo"]
    assert settings.config == Config()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[engine]\ntheads = 3", "line 2: [engine] has no key theads; did you mean threads?"),
        ("[engine]\ncontext = 3", "line 2: [engine] has no key context; it belongs into [model]"),
        ("[engine]\nxyzzy = 3", "[engine] has no key xyzzy; its keys are threads, affinity"),
        ("port = 3", "line 1: port is no table; it belongs into [server]"),
        ("[sever]\nport = 3", "line 1: sever is no table; did you mean [server]?"),
        ("[xyzzy]", "xyzzy is no table; the tables are [server], [log]"),
        ("server = 3", "server must be a table"),
        ("[server]\nport = '80'", "line 2: port in [server] is '80'; it must be a whole number"),
        ("[server]\nport = true", "port in [server] is True; it must be a whole number"),
        ("[server]\nport = 99999", "port in [server] is 99999; it must lie between 0 and 65535"),
        ("[model]\nkv_cache = 'int3'", "kv_cache in [model] is 'int3'; it must be one of"),
        ("[server]\ndrain_s = -1", "drain_s in [server] is -1.0; it must lie between"),
        ("[engine]\nmax_step_tokens = 0", "max_step_tokens in [engine] is 0; it must lie between"),
        ("[limits]\nmax_body_mib = 0", "max_body_mib in [limits] is 0.0; it must lie between"),
        ("[model]\nkv_gib = nan", "kv_gib in [model] is nan; it must lie between"),
        ("[server]\ncors_origins = 'x'", "cors_origins in [server] is 'x'; it must be a list of texts"),
        ("[models.a]\ncontext = 512", "[models.a] has no path"),
        ("[models.a]\npath = 'a.gguf'\ncontext = 1", "[models.a]: context in [model] is 1; it must lie between"),
        ("[models.'a b']\npath = 'a.gguf'", "'a b' is no name of a model"),
        (
            "[pool]\ndefault = 'b'\n[models.a]\npath = 'a'",
            "default in [pool] is 'b', but there is no [models.b], only a",
        ),
        ("[server", "isotherm config sample"),
        ("x = " + "[" * 2000, "isotherm config sample"),
    ],
)
def test_what_is_wrong_is_told_by_key_and_remedy(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        gathered(path)
    assert str(error.value).startswith(str(path))
    assert told in str(error.value)
    assert run("config", "check", path).exit_code == 2
    assert run("serve", "--config", path).exit_code == 2


@pytest.mark.parametrize("data", [b"\xff\xfe", b"#" * (1 << 20) + b"#"])
def test_what_is_no_text_or_too_large_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        read_file(tmp_path / "config.toml")


def test_a_file_that_is_not_there_is_told() -> None:
    assert "nowhere.toml cannot be read" in run("serve", "--config", "nowhere.toml").stderr


def test_a_plan_is_of_one_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a plan is of one model"):
        gathered(None, "a.gguf", "b.gguf", plan=Path("plan.json"))
    text = "[models.a]\npath = 'a.gguf'\nplan = 'a.json'\n[models.b]\npath = 'b.gguf'"
    plans = [config.plan for config in gathered(write(tmp_path, text)).models.values()]
    assert plans == [tmp_path / "a.json", None]


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two models have the same name: one"):
        gathered(None, "a/one.gguf", "b/one.gguf")


def test_the_file_is_looked_for_where_it_should_be(tmp_path: Path) -> None:
    user, unit, named = (tmp_path / name / "config.toml" for name in ("home/.config/isotherm", "unit", "named"))
    for path in (user, unit):
        path.parent.mkdir(parents=True)
        path.write_text("")
    home = {"HOME": str(tmp_path / "home")}
    assert find_file(home) == user
    assert find_file(home | {"CONFIGURATION_DIRECTORY": str(unit.parent)}) == unit
    assert find_file(home | {"ISOTHERM_CONFIG": str(named)}) == named  # refused where it is not there
    assert find_file({"HOME": str(tmp_path / "none"), "XDG_CONFIG_HOME": str(user.parent.parent)}) == user


def test_the_sample_has_every_key_and_is_a_file_of_defaults(tmp_path: Path) -> None:
    text = sample()
    for table in TABLES:
        assert f"\n[{table}]\n" in text
        assert all(f"\n#{key.name} = " in text for key in keys_of(table))
    assert gathered(write(tmp_path, text)).config == Config()
    told = "\n".join(line.removeprefix("#") for line in text.splitlines() if not line.startswith("# "))
    tomllib.loads(told)


VALUES = {
    "port": st.integers(0, 65535),
    "host": st.text(max_size=20),
    "threads": st.integers(1, 1024),
    "context": st.integers(16, 1 << 24),
    "kv_gib": st.floats(0, 1000),
    "kv_cache": st.sampled_from(["int16", "int8", "bf16"]),
    "pack_cache": st.booleans(),
    "cors_origins": st.lists(st.sampled_from(["*", "https://a.example"])).map(tuple),
    "keep_s": st.floats(0, 1000),
    "log_level": st.sampled_from(["debug", "error"]),
    "traces": st.sampled_from(['http://a.example/\x7f\t"\\', "https://\u00fc.example"]),
    "plan": st.sampled_from([Path("/a/plan.json"), Path('/with "quotes"/plan')]),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    settings = Settings(models={"m": Config(name="m", model=Path("/m.gguf"), **values)}, origins={}, file=None)
    path = write(tmp_path_factory.mktemp("toml"), as_toml(settings))
    assert gathered(path).models == settings.models


def test_show_tells_where_values_come_from(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    lines = run("config", "show", path).stdout.splitlines()
    assert any(line.split()[:2] == ["engine.threads", "3"] and line.endswith("[engine]") for line in lines)
    assert any(line.split()[:3] == ["models.big.context", "8192", str(path)] for line in lines)
    assert any(line.split()[:3] == ["engine.max_running", "64", "default"] for line in lines)
    assert (
        gathered(write(tmp_path, run("config", "show", path, "--toml").stdout)).models
        == gathered(write(tmp_path, FILE)).models
    )


def test_a_check_looks_at_the_files_that_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, FILE.replace("/models/big.gguf", "big.gguf"))
    for name, text in (("keys.txt", "alpha"), ("big.gguf", ""), ("small.gguf", "")):
        result = run("config", "check", path)
        assert result.exit_code == 2
        assert f"{tmp_path / name}" in result.stderr
        (tmp_path / name).write_text(text)
    assert run("config", "check", path).stdout.strip().endswith("is right; it serves big, small")


def test_a_reload_takes_over_what_can_change(tmp_path: Path) -> None:
    before = gathered(write(tmp_path, FILE))
    after = gathered(write(tmp_path, FILE.replace("keep_s = 60", "keep_s = 5").replace("threads = 3", "threads = 4")))
    models, stale = differing(before, after)
    assert (models["big"].keep_s, models["big"].threads) == (5, 3)
    assert stale == ["engine.threads"]


def test_models_that_come_or_go_need_a_restart(tmp_path: Path) -> None:
    before = gathered(write(tmp_path, FILE))
    after = gathered(write(tmp_path, FILE.replace("[models.small]", "[models.other]")))
    assert sorted(differing(before, after)[1]) == ["models.other", "models.small"]
