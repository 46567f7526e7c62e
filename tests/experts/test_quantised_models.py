"""Models in every layout of quantised safetensors against the float models of the same weights."""

import json
from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.formats import FORMATS
from isotherm.experts.model import open_model
from isotherm.experts.pack import pack
from isotherm.experts.reference import ReferenceDecoder
from isotherm.experts.store import PackedStore, StoreError
from support import tiny
from support.engines import engine, feed_by, lane
from support.judges import check_quantised
from support.oracle import errors
from support.quantised import LAYOUTS, write_quantised
from support.tiny import VOCAB_SIZE

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB_SIZE, 20)]
# Each format once; how the others are read shows in `test_quantised_layouts`.
WITH_KERNELS = ("fp8 blocks", "fbgemm", "fp8 stacked", "mxfp4", "gptq", "gptq 8 bits", "awq", "packed")
WITH_KERNELS += ("packed zero points", "int-quantized")
FLOATS = [name for name in WITH_KERNELS if LAYOUTS[name].format == "FP8"]
CODES = [name for name in WITH_KERNELS if name not in FLOATS]


def test_every_format_is_tried_with_kernels() -> None:
    assert {LAYOUTS[name].format for name in WITH_KERNELS} == {layout.format for layout in LAYOUTS.values()}


@pytest.mark.parametrize(
    "layout, architecture",
    [("fp8 blocks", "llama"), ("gptq", "mixtral"), ("mxfp4", "mixtral"), ("packed", "qwen2_moe"), ("awq", "olmoe")],
)
def test_the_reference_gives_the_logits_of_the_float_model(layout: str, architecture: str, tmp_path: Path) -> None:
    model = write_quantised(tmp_path, architecture, LAYOUTS[layout])
    got = ReferenceDecoder(open_model(tmp_path)).logits(PROMPT)
    assert errors(got, tiny.logits(model, PROMPT)).max() < 1e-5


@pytest.mark.parametrize("layout", FLOATS)
def test_8_bit_floats_give_the_logits_of_the_float_model(layout: str, tmp_path: Path) -> None:
    model = write_quantised(tmp_path, "qwen3_moe", LAYOUTS[layout])
    with engine(tmp_path, threads=2) as runner:
        rows = feed_by(runner, PROMPT, (7, 1, 12), lane(runner))
    assert errors(np.stack(list(rows.values())), tiny.logits(model, PROMPT)[list(rows)]).max() < 1e-5


@pytest.mark.parametrize("layout", CODES)
def test_codes_give_the_logits_of_their_definition(layout: str, tmp_path: Path) -> None:
    model = write_quantised(tmp_path, "qwen3_moe", LAYOUTS[layout])
    check_quantised(tmp_path, model, FORMATS[LAYOUTS[layout].format].product_error)


def test_packed_weights_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    """The tensors' names and types do not tell the two versions of GPTQ apart."""
    write_quantised(tmp_path / "model", "llama", LAYOUTS["gptq zero points"])
    model = open_model(tmp_path / "model")
    PackedStore(tmp_path, model).save(pack(model))
    PackedStore(tmp_path, open_model(tmp_path / "model")).load()
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    file.write_text(json.dumps(config))
    with pytest.raises(StoreError, match="another version"):
        PackedStore(tmp_path, open_model(tmp_path / "model")).load()


def test_a_tied_head_may_be_quantised(tmp_path: Path) -> None:
    model = write_quantised(tmp_path, "llama", LAYOUTS["fp8 blocks"], floats="norm", tie_word_embeddings=True)
    opened = open_model(tmp_path)
    assert opened.weights.tensor("embed").format == "FP8" and opened.weights.head_is_embedding
    with engine(tmp_path) as runner:
        rows = feed_by(runner, PROMPT, (7, 1, 12), lane(runner))
    assert errors(np.stack(list(rows.values())), tiny.logits(model, PROMPT)[list(rows)]).max() < 1e-5
