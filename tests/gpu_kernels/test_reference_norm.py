"""The norm in torch, and the records that it makes: the bits of the CPU's kernels."""

import numpy as np
import pytest
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.layout import padded, record_bytes
from isotherm.cpu_kernels.norm import RMS_NORM_FIELDS, rms_norm
from isotherm.gpu_kernels.reference import TorchKernels
from support.matrices import random_rows
from support.ops import run_op
from support.torch_values import count_of, empty_record, tensor

WIDTHS = [1, 16, 17, 63, 64, 65, 576, 2056]
FORMS = {"plain", "q8"}
KERNELS = TorchKernels()


@pytest.mark.parametrize("n", WIDTHS)
def test_norm_gives_the_bits_of_the_cpu(n):
    x, weight, eps = random_rows(9, n), random_rows(1, n, 1)[0], 1e-6
    plain = np.empty((9, padded(n)), np.float32)
    records = np.empty((9, record_bytes(n, "q8")), np.uint8)
    fields = {"x": x, "x_stride": x.strides[0], "n": n, "count_slot": N_TOKENS, "weight": weight, "eps": eps}
    fields |= {"plain": plain, "plain_stride": plain.strides[0]}
    fields |= {"record": records, "record_stride": records.strides[0]}
    run_op(rms_norm, RMS_NORM_FIELDS, fields, step={N_TOKENS: 9})
    out = empty_record(9, n, FORMS)
    KERNELS.rms_norm(tensor(x), tensor(weight), eps, out, count_of(9))
    np.testing.assert_array_equal(out.plain, plain)
    np.testing.assert_array_equal(out.codes, records[:, : padded(n)].view(np.int8))
    np.testing.assert_array_equal(out.scales.numpy().view(np.uint8), records[:, padded(n) :][:, : padded(n) // 16])
