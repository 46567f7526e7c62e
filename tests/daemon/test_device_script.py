"""The script for real cards runs on the emulated accelerator, finds what is wrong, and says what it skipped."""

import re

import numpy as np
import pytest
import torch
from device import run
from device.kernel_cases import Case, cases, linear
from device.report import Report
from isotherm.gpu_kernels.devices import open_device
from isotherm.gpu_kernels.reference import TorchKernels


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_it_runs_on_the_emulated_accelerator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MODELS", {"qwen3_moe": "Q4_0"})
    monkeypatch.setattr(run, "SHARES", (0.5,))
    code = run.main(["--accelerator", "emulated:vram=1GiB", "--cases", "12", "--small", "--threads", "1"])
    text = capsys.readouterr().out
    assert code == 0, text
    assert "# emulated:0: a modelled device, 1.0 GiB" in text
    assert "12 cases" in text
    assert text.count("the same bits") == 3
    assert "blocks of keys and values from RAM, qwen3_moe: the same bits" in text
    assert text.count("| card only |") == 1
    hidden = re.search(r"(\d+)% of the shorter is hidden", text)
    assert hidden is not None
    assert int(hidden[1]) >= 95
    assert "* Triton's kernels: there is no card" in text
    assert "cases of ops, for lack of time" in text
    assert "everything agrees" in text


def test_every_op_has_a_case() -> None:
    ops = {op for case in cases() for op, _, _ in case.calls}
    assert ops == {name for name in dir(TorchKernels) if not name.startswith("_")} - {"waits"}


def test_kernels_that_are_wrong_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(TorchKernels):
        def to_record(self, x, out, count):  # type: ignore[no-untyped-def]
            super().to_record(x, out, count)
            out.scales[0, 0] += 1

        def embed(self, *_):  # type: ignore[no-untyped-def]
            raise RuntimeError("no such kernel")

    report, accelerator = Report(60), open_device("emulated")
    run.check_kernels(report, accelerator, Wrong(), 60.0, 10_000)
    wrong = {fault.split(":")[0] for fault in report.faults}
    assert "linear q4 of 1" in wrong
    assert "embed q8" in wrong
    assert "route" not in wrong
    assert report.end() == 1
    assert "faults" in capsys.readouterr().out


def test_a_late_report_leaves_cases_out() -> None:
    report = Report(60)
    run.check_kernels(report, open_device("emulated"), TorchKernels(), 0.0, 10_000)
    assert len(report.skipped) == 1
    assert report.faults == []


def test_a_case_runs_the_same_on_tensors_that_were_moved() -> None:
    case: Case = linear("q8", 3)
    before = [out.clone() for out in case.outputs]
    first, second = (case.run(TorchKernels(), torch.device("cpu")) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    for out, untouched in zip(case.outputs, before, strict=True):
        assert torch.equal(out, untouched)
