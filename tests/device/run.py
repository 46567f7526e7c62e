"""What a graphics card does with Isotherm, in under five minutes: `python tests/device/run.py --accelerator cuda:0`.

Every op against its definition, byte for byte; a hybrid model against the CPU alone; speeds with their predictions
beside; and how much of the work of card and CPU overlaps. Without a card it takes the emulated one, whose times are
those of a model. It says what it skipped, and ends with 1 if anything was wrong.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from device.kernel_cases import cases
from device.overlap import overlap
from device.report import Report
from device.speeds import CONTEXT, WAYS, Bench, Way
from isotherm.daemon.machine import default_threads
from isotherm.daemon.runner import DecoderRunner
from isotherm.experts.model import Model, open_model
from isotherm.experts.random_decoder import small_spec, wide_spec
from isotherm.gpu_kernels.device import Accelerator
from isotherm.gpu_kernels.devices import list_devices, open_device
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.kernels import Kernels
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.hardware import HardwareProfile
from isotherm.placement.hardware_file import load_profile
from isotherm.placement.placed import Traffic
from support.engines import Logits, engine, feed, greedy
from support.hybrid import LIMITS, hybrid, random_placement
from support.modelled import profile_of
from support.tiny import VOCAB_SIZE, write_gguf

MODELS = {"qwen3_moe": "Q4_0", "qwen2_moe": "Q8_0"}
SHARES = (0.0, 0.5, 1.0)
KERNEL_SHARE = 0.6  # of the time, at most


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    names = list_devices()
    name = options.accelerator or next((name for name in names if name.startswith("cuda")), names[-1])
    report = Report(options.seconds)
    accelerator = open_device(name)
    kernels = _kernels(name, report)
    report.line(f"# {accelerator.name}: {_named(accelerator)}, {accelerator.limit_bytes / 2**30:.1f} GiB")
    check_kernels(report, accelerator, kernels, KERNEL_SHARE * options.seconds, options.cases)
    check_models(report, accelerator, kernels)
    hardware = _hardware(options.machine, accelerator, report)
    measure(report, accelerator, kernels, hardware, options.threads or default_threads(), wide=options.wide)
    return report.end()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", help="cuda:0, or emulated:vram=2GiB,link=16GBps; the first card if not given")
    parser.add_argument("--machine", type=Path, help="the machine's profile, by `isotherm calibrate`: for predictions")
    parser.add_argument("--threads", type=int, help="of the CPU; one for each core if not given")
    parser.add_argument("--seconds", type=float, default=270.0, help="within which all should be over")
    parser.add_argument("--cases", type=int, default=10_000, help="of ops, at most")
    parser.add_argument("--small", dest="wide", action="store_false", help="time a small decoder")
    return parser


def _kernels(name: str, report: Report) -> Kernels:
    if name.startswith("cuda"):
        from isotherm.gpu_kernels.triton_kernels import triton_kernels

        return triton_kernels()
    report.skip("Triton's kernels: there is no card, and the definitions in torch stand for them")
    return TorchKernels()


def _named(accelerator: Accelerator) -> str:
    if accelerator.tensors.type != "cuda":
        return "a modelled device"
    version = f"CUDA {torch.version.cuda}, torch {torch.__version__}"
    return f"{torch.cuda.get_device_properties(accelerator.tensors).name}, {version}"


def check_kernels(report: Report, accelerator: Accelerator, kernels: Kernels, seconds: float, most: int) -> None:
    report.title("Ops against their definitions in torch, byte for byte")
    definition, done, left, own = TorchKernels(), 0, [], Report(seconds)
    for case in cases():
        if own.is_late or done == most:
            left.append(case.name)
            continue
        done += 1
        try:
            differs = case.differs(kernels, accelerator.tensors, definition)
        except Exception as error:  # the other cases are of interest too
            differs = f"{type(error).__name__}: {error}"
        if differs:
            report.fault(f"{case.name}: {differs}")
    report.line(f"{done} cases")
    if left:
        report.skip(f"{len(left)} cases of ops, for lack of time: {', '.join(left)}")


def check_models(report: Report, accelerator: Accelerator, kernels: Kernels) -> None:
    report.title("Tokens and logits of hybrid models against the CPU alone")
    with tempfile.TemporaryDirectory() as folder:
        for architecture, quantisation in MODELS.items():
            path = Path(folder) / f"{architecture}.gguf"
            write_gguf(path, architecture, quantisation)
            model = open_model(path)
            for share in SHARES:
                for dense in (False, True):
                    if report.is_late:
                        report.skip(f"{architecture} with {share:.0%} of its experts on the card, for lack of time")
                        continue
                    _check_model(report, accelerator, kernels, model, Way("", dense=dense, share=share))
        if report.is_late:
            report.skip("keys and values that go to RAM and back, for lack of time")
        else:
            _check_offload(report, accelerator, kernels, model)


def _check_model(report: Report, accelerator: Accelerator, kernels: Kernels, model: Model, way: Way) -> None:
    random = Random(3)
    prompts = [[random.randrange(VOCAB_SIZE) for _ in range(length)] for length in (19, 4, 1)]
    with engine(model.checkpoint.path, **LIMITS) as runner:
        expected = greedy(runner, prompts, 4)
    dense = (0 if way.dense else -1,) * (model.spec.num_layers + 2)
    placement = random_placement(model.spec, [way.share], seed=1, dense=dense)
    with hybrid(model, placement, [accelerator], kernels=[kernels]) as runner:
        got = greedy(runner, prompts, 4)
    where = f"{model.spec.architecture}, {way.share:.0%} of the experts, dense parts {'there' if way.dense else 'here'}"
    if got[0] != expected[0]:
        report.fault(f"{where}: other tokens")
    elif (got[1] != expected[1]).any():
        report.fault(f"{where}: the same tokens, but other logits, by up to {abs(got[1] - expected[1]).max():.1e}")
    else:
        report.line(f"* {where}: the same bits")


def _check_offload(report: Report, accelerator: Accelerator, kernels: Kernels, model: Model) -> None:
    """All on the card, with room for the keys and values of one of three sequences."""
    placement = random_placement(model.spec, [1.0], seed=1, dense=(0,) * (model.spec.num_layers + 2))
    with engine(model.checkpoint.path, **LIMITS) as runner:
        expected = in_turn(runner)
    with hybrid(model, placement, [accelerator], kernels=[kernels], kv_blocks=[2]) as runner:
        got = in_turn(runner)
        moved = runner.executor.kv[0].brought_back  # type: ignore[attr-defined]
    if moved and all((ours == theirs).all() for ours, theirs in zip(got, expected, strict=True)):
        report.line(f"* {moved} blocks of keys and values from RAM, {model.spec.architecture}: the same bits")
    else:
        report.fault(f"keys and values that came back from RAM, {moved} blocks of them: other logits")


def in_turn(runner: DecoderRunner) -> list[Logits]:
    """The logits of three sequences that take turns."""
    random = Random(5)
    return [
        feed(runner, [random.randrange(VOCAB_SIZE) for _ in range(6)], 6 * turn, (2 * number, 2 * number + 1))
        for turn in range(5)
        for number in range(3)
    ]


def _hardware(path: Path | None, accelerator: Accelerator, report: Report) -> HardwareProfile | None:
    if path is not None:
        return load_profile(path)
    if accelerator.tensors.type == "cuda":
        report.skip("predictions, and streaming by them: give --machine FILE, made by `isotherm calibrate --out FILE`")
        return None
    assert isinstance(accelerator, Emulated)
    report.line("\nThe CPU's part of modelled times is that of a made-up machine; give --machine for another one.")
    return profile_of(accelerator)


def measure(
    report: Report,
    accelerator: Accelerator,
    kernels: Kernels,
    hardware: HardwareProfile | None,
    threads: int,
    *,
    wide: bool,
) -> None:
    spec = (wide_spec if wide else small_spec)(CONTEXT)
    prompt, steps, repeats = (512, 16, 3) if wide else (64, 3, 1)
    bench = Bench.of(spec, accelerator, kernels, threads, hardware)
    report.title(
        f"Tokens a second of {spec.num_layers} layers of width {spec.hidden_size}, {threads} threads of the CPU"
    )
    report.line("| where | decode, 1 stream | predicted | 8 streams | predicted | prompt | predicted |")
    report.line("|---|---|---|---|---|---|---|")
    for way in WAYS:
        if report.is_late or (way.streams and hardware is None):
            report.skip(f"speed of {way.name}")
            continue
        with bench.runner(way, prompt) as runner:
            found = [bench.decode_rate(runner, 1, steps), bench.decode_rate(runner, 8, steps)]
            found.append(bench.prefill_rate(runner, prompt, repeats))
        context = 64 + steps // 2
        expected = [
            bench.predicted(way, Traffic(streams=streams, context=context, prompt=prompt, chunk=prompt))
            for streams in (1, 8)
        ]
        told = [f"{expected[i][j]:.1f}" if expected[i] else "" for i, j in ((0, 0), (1, 0), (0, 1))]  # type: ignore[index]
        cells = [text for rate, one in zip(found, told, strict=True) for text in (f"{rate:.1f}", one)]
        report.line(f"| {way.name} | {' | '.join(cells)} |")
    report.title("Overlap of card and CPU, by events")
    if report.is_late:
        report.skip("the overlap, for lack of time")
        return
    with bench.runner(WAYS[0], prompt) as runner:
        found_overlap = overlap(accelerator, runner, prompt)
    report.line(
        f"{1e3 * found_overlap.card:.2f} ms of the card and {1e3 * found_overlap.cpu:.2f} ms of the CPU take "
        f"{1e3 * found_overlap.both:.2f} ms together: {found_overlap.hidden:.0%} of the shorter is hidden"
    )


if __name__ == "__main__":
    sys.exit(main())
