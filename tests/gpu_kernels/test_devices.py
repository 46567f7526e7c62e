"""How accelerators are named and opened."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from isotherm.gpu_kernels import triton_kernels as triton_kernels_module
from isotherm.gpu_kernels.device import Cost, DeviceError
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.devices import kernels_for, list_devices, open_device, open_devices, parse_device
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.reference import TorchKernels


def cards(count: int) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count))


def test_each_card_and_the_emulated_device_are_listed() -> None:
    assert list_devices(cards(2)) == ["cuda:0", "cuda:1", "emulated"]
    assert list_devices(cards(0)) == ["emulated"]


def test_all_numbers_of_an_emulated_device_can_be_given() -> None:
    text = "emulated:vram=2GiB,link=16GBps,read=900GB/s,tflops=82.5,launch=5us,hop=0.1ms,number=3"
    assert parse_device(text) == Spec(
        vram_bytes=2 << 30,
        to_gb_s=16.0,
        from_gb_s=16.0,
        read_gb_s=900.0,
        tflops={"other": 82.5},
        launch_us=5.0,
        hop_us=100.0,
        number=3,
    )


def test_what_is_not_given_has_its_default() -> None:
    assert parse_device("emulated") == parse_device("emulated:") == Spec()
    assert parse_device("emulated:vram=512MiB") == Spec(vram_bytes=512 << 20)
    assert parse_device("emulated:link=500MBps") == Spec(to_gb_s=0.5, from_gb_s=0.5)


def test_cards_are_named_by_their_number() -> None:
    assert [parse_device(text) for text in ("cuda", "cuda:0", "cuda:11")] == [0, 0, 11]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rocm:0", "'rocm:0' is no accelerator; write cuda:0, or emulated:vram=2GiB,link=16GBps"),
        ("cuda:one", "is no accelerator"),
        ("emulated:ram=2GiB", "has no 'ram=2GiB'; it has vram=, link=, read=, tflops=, launch=, hop=, number="),
        ("emulated:vram", "has no 'vram'"),
        ("emulated:vram=2GiB,vram=3GiB", "two vram="),
        ("emulated:vram=lots", "vram= of an emulated device: 'lots' is no size; write one such as 2GiB"),
        ("emulated:vram=-1GiB", "is no size"),
        ("emulated:vram=nanGiB", "is no size"),
        ("emulated:link=16", "link= of an emulated device: '16' has no unit of GBps"),
        ("emulated:link=16GiB", "has no unit of GBps"),
        ("emulated:link=0GBps", "link (to_gb_s) of an emulated device is 0; it must be above 0"),
        ("emulated:link=1.2.3GBps", "'1.2.3GBps' is no number"),
        ("emulated:tflops=fast", "tflops= of an emulated device"),
        ("emulated:hop=5s", "has no unit of us, ms"),
        ("emulated:number=-1", "number= of an emulated device: '-1' is no number"),
    ],
)
def test_a_wrong_name_says_what_is_wrong_with_it(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_device(text)
    assert message in str(caught.value)


def test_a_spec_needs_tflops_for_all_kinds() -> None:
    with pytest.raises(ValueError, match="other"):
        Spec(tflops={"Q4_0": 1.0})


def test_an_emulated_device_has_the_memory_that_was_asked_for() -> None:
    device = open_device("emulated:vram=1MiB,number=2")
    assert isinstance(device, Emulated)
    assert (device.name, device.limit_bytes, device.tensors) == ("emulated:2", 1 << 20, torch.device("cpu"))


def test_a_card_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DeviceError, match="there is no cuda:4096: torch sees"):
        open_device("cuda:4096")


def test_devices_opened_together_have_one_clock() -> None:
    first, second = open_devices(["emulated:vram=1MiB", Spec(number=1)])
    first.launch(lambda: None, Cost(nbytes=1e9))
    first.synchronise()
    assert second.now() == first.now() > 0


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(DeviceError, match="two of emulated:0: give one of them number=1"):
        open_devices(["emulated", "emulated:vram=1GiB"])


def test_a_card_gets_triton_kernels_and_an_emulated_device_the_definitions() -> None:
    told: list[str] = []
    card: Any = SimpleNamespace(name="cuda:0", tensors=torch.device("cuda", 0))
    assert type(kernels_for(card, lambda name, detail: told.append(name))).__name__ == "TritonKernels"
    assert isinstance(kernels_for(Emulated(), lambda name, detail: told.append(name)), TorchKernels)
    assert not told


def test_a_card_without_triton_runs_the_definitions_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels_module, "find_spec", lambda name: None)
    told: list[tuple[str, str]] = []
    card: Any = SimpleNamespace(name="cuda:0", tensors=torch.device("cuda", 0))
    assert isinstance(kernels_for(card, lambda *note: told.append(note)), TorchKernels)
    assert told[0][0] == "torch_kernels" and "pip install 'isotherm[gpu]'" in told[0][1]
