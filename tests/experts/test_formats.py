import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from isotherm.experts.formats import FORMATS
from support.blocks import GGUF_FORMATS, RANDOM, encode

VALUES = np.random.default_rng(0).standard_normal((3, 512), dtype=np.float32)
BITS = {"F32": 24, "F16": 11, "BF16": 8, "MXFP4": 3} | {f"Q{bits}_K": bits for bits in (4, 5, 6)}
BITS |= {"FP8": 3, "INT4": 4, "INT4_BF16": 4, "INT4_ZP": 4, "INT4_ZP_BF16": 4, "INT8": 8, "INT8_BF16": 8}
BITS |= {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "TQ1_0": 2, "TQ2_0": 2}


def encoded(name: str) -> np.ndarray:
    return encode(VALUES, name).view(np.uint8)


def test_the_table_holds_the_formats_that_are_promised():
    promised = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4"
    promised += " IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0"
    promised += " FP8 INT4 INT4_BF16 INT4_ZP INT4_ZP_BF16 INT8 INT8_BF16"
    assert sorted(FORMATS) == sorted(promised.split())


def test_whatever_the_gguf_library_reads_is_in_the_table():
    unread = []
    for kind in GGMLQuantizationType:
        try:
            quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            unread.append(kind.name)
    assert {kind.name for kind in GGMLQuantizationType} - set(unread) == set(GGUF_FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_are_the_formats_own(name):
    row = FORMATS[name]
    if name in GGUF_FORMATS:
        assert (row.block, row.block_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert 512 // row.block * row.block_bytes == encoded(name).shape[-1]


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - RANDOM))
def test_dequantised_values_are_near_what_was_encoded(name):
    got = FORMATS[name].dequantise(encoded(name))
    assert got.dtype == np.float32 and got.shape == VALUES.shape
    step = np.abs(VALUES).max() * 2.0 ** (1 - BITS[name])  # a code is at most about one step away
    assert np.abs(got - VALUES).max() <= step


@pytest.mark.parametrize("name", RANDOM)
def test_random_blocks_are_valid_and_of_the_size_asked_for(name):
    got = FORMATS[name].dequantise(encoded(name))
    assert got.dtype == np.float32 and got.shape == VALUES.shape
    np.testing.assert_allclose(np.sqrt(np.mean(got**2)), np.sqrt(np.mean(VALUES**2)), rtol=0.1)


@pytest.mark.parametrize("name", FORMATS)
def test_leading_axes_are_kept(name):
    data = encoded(name)
    one = FORMATS[name].dequantise(data)
    np.testing.assert_array_equal(FORMATS[name].dequantise(np.stack([data, data])), np.stack([one, one]))


def test_q4_0_block_by_hand():
    codes = np.arange(16, dtype=np.uint8)
    block = np.concatenate([np.array([0.5], np.float16).view(np.uint8), codes | (15 - codes) << 4])
    expected = 0.5 * (np.concatenate([np.arange(16), 15 - np.arange(16)]) - 8.0)
    np.testing.assert_array_equal(FORMATS["Q4_0"].dequantise(block), expected)


def test_q4_k_block_by_hand():
    d, d_min = 0.5, 0.25
    scales = np.array([1, 2, 3, 4, 33, 34, 35, 63], np.uint8)
    offsets = np.array([0, 5, 6, 7, 16, 17, 50, 63], np.uint8)
    codes = np.random.default_rng(1).integers(0, 16, (8, 32), np.uint8)
    packed = [
        *(scales[:4] | (scales[4:] >> 4) << 6),
        *(offsets[:4] | (offsets[4:] >> 4) << 6),
        *((scales[4:] & 15) | (offsets[4:] & 15) << 4),
    ]
    nibbles = (codes[0::2] | codes[1::2] << 4).reshape(-1)
    head = np.array([d, d_min], np.float16).view(np.uint8)
    block = np.concatenate([head, np.array(packed, np.uint8), nibbles])
    expected = d * scales[:, None].astype(np.float32) * codes - d_min * offsets[:, None].astype(np.float32)
    np.testing.assert_array_equal(FORMATS["Q4_K"].dequantise(block), expected.reshape(-1))


@pytest.mark.parametrize("name", ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_what_is_packed_into_8_bits_says_that_it_is_not_exact(name):
    row = FORMATS[name]
    assert row.packed == "q8" and not row.exact
    assert row.product_error > FORMATS["Q8_0"].product_error


EXACT = {"F32": "f32", "F16": "f16", "BF16": "bf16", "Q4_0": "q4", "Q4_1": "q4m", "Q5_0": "q5", "Q5_1": "q5m"}
EXACT |= {"Q8_0": "q8", "IQ4_NL": "iq4", "MXFP4": "mx4", "NVFP4": "nv4", "TQ1_0": "q2", "TQ2_0": "q2"}
EXACT |= {"FP8": "f8", "INT4": "q4", "INT4_BF16": "q4b", "INT4_ZP": "q4z", "INT4_ZP_BF16": "q4zb", "INT8": "q8"}
EXACT |= {"INT8_BF16": "q8b"}
EXACT |= {"Q2_K": "q2k", "Q3_K": "q3k", "Q4_K": "q4k", "Q5_K": "q5k", "Q6_K": "q6k", "IQ4_XS": "iq4k"}


@pytest.mark.parametrize(("name", "packed"), EXACT.items())
def test_what_keeps_its_numbers_says_so(name, packed):
    assert (FORMATS[name].packed, FORMATS[name].exact) == (packed, True)
