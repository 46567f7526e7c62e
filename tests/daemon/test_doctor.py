"""`isotherm doctor`: faults that are put into a machine, its files and its settings are found, and nothing else is."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isotherm.cpu_kernels.features import host_tier
from isotherm.daemon.config import key_digest
from isotherm.daemon.doctor import cards, files, memory, model, processor, service
from isotherm.daemon.doctor.examination import LOOKS, Look, examine
from isotherm.daemon.doctor.finding import Finding, worst
from isotherm.daemon.doctor.patient import Patient
from isotherm.daemon.paths import packed_folder, state_folder
from isotherm.daemon.state import write_state
from isotherm.experts.model import open_model
from isotherm.experts.pack import pack
from isotherm.experts.store import PackedStore
from isotherm.placement.plan_file import save_plan
from isotherm.placement.trace_file import save_trace
from support.api_service import make_service, serving
from support.cli import daemon_state, run
from support.machines import node, siblings, write_files
from support.plans import plan_of
from support.tiny import write_blank_gguf
from support.traces import decoded

pytestmark = pytest.mark.usefixtures("own_folders")

HEALTHY = {
    **siblings("0,2", "1,3"),
    **node(0, "0-3"),
    "proc/cpuinfo": f"flags\t\t: fpu {host_tier().name}",  # a tier is called as its flag is
    "proc/meminfo": "SwapTotal:       8388608 kB\nSwapFree:        8388608 kB",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq": "5000000" for cpu in range(4)},
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "5000000",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "0",
}
CARD = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000"}
DRIVER = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025"}
CHEAP: tuple[Look, ...] = tuple(look for look in LOOKS if look not in (processor.layer, memory.bandwidth))


def machine(root: Path, changes: dict[str, str] | None = None, **given: Any) -> Patient:
    write_files(root, HEALTHY | (changes or {}))
    return Patient(**{"root": root, "cpus": (0, 1, 2, 3), "memlock": -1, "torch": "2.13.0+cpu", "port": 0} | given)


def faults(patient: Patient, looks: tuple[Look, ...] = CHEAP) -> list[Finding]:
    return [finding for finding in examine(patient, lambda stage, done, total: None, looks) if finding.grade != "good"]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_blank_gguf(path, "qwen3_moe", "Q4_0")
    return path


def test_a_healthy_machine_has_no_fault(tmp_path: Path, tiny: Path) -> None:
    assert faults(machine(tmp_path / "root", model=tiny)) == []


OFTEN_THROTTLED = {"sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "812"}
POWERSAVE = {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"}
CAPPED = {"sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "2000000"}
SWAPPED = {"proc/meminfo": "SwapTotal:       8388608 kB\nSwapFree:        1000000 kB"}
STALLED = {"proc/pressure/memory": "some avg10=30.00 avg60=42.50 avg300=9.00 total=99"}
NEVER = {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}
QUOTA = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 100000"}
TWO_NODES = {**node(0, "0,2"), **node(1, "1,3")}
BALANCED = {**TWO_NODES, "proc/sys/kernel/numa_balancing": "1"}


@pytest.mark.parametrize(
    ("changes", "given", "subject", "told", "remedy"),
    [
        ({}, {"told_threads": 8}, "threads", "8 threads on 4 CPUs", "--threads 2"),
        ({}, {"told_threads": 4}, "threads", "share a core (SMT)", "--threads 2"),
        ({}, {"told_threads": 1}, "threads", "1 threads leave 1 cores idle", "--threads 2"),
        (QUOTA, {"told_threads": 2}, "threads", "lets 1 run", "--threads 1"),
        (NEVER, {}, "huge pages", "are off", "transparent_hugepage"),
        ({}, {"memlock": 64 * 1024, "accelerators": ("cuda:0",)}, "memlock", "only 64 KiB", "LimitMEMLOCK"),
        (SWAPPED, {}, "memory", "7.0 GiB are swapped out", "swapoff"),
        (STALLED, {}, "memory", "in 42 % of the last minute", "end other programs"),
        (OFTEN_THROTTLED, {}, "heat", "812 times", "fans"),
        (POWERSAVE, {}, "clocks", "powersave", "cpupower"),
        (CAPPED, {}, "clocks", "2.0 GHz, and could at 5.0", "cpupower frequency-set -u 5000MHz"),
        (TWO_NODES, {"told_threads": 1}, "memory nodes", "1 threads for 2 nodes", "--threads 2"),
        (BALANCED, {}, "memory nodes", "moves pages", "numa_balancing=0"),
        ({}, {"accelerators": ("cuda:0",)}, "graphics card", "no card is there", "leave --accelerator out"),
        (CARD, {}, "graphics card", "1 without a driver", "install NVIDIA's driver"),
        (CARD | DRIVER, {}, "graphics card", "2.13.0+cpu is a build without CUDA", "pip install torch"),
        (CARD | DRIVER, {"torch": None}, "graphics card", "torch is not installed", "pip install torch"),
        (CARD | DRIVER, {"torch": "2.13.0+cu130"}, "graphics card", "driver 580.65.06, not used", "cuda:0"),
    ],
)
def test_a_fault_of_the_machine_is_found(
    tmp_path: Path, changes: dict[str, str], given: dict[str, Any], subject: str, told: str, remedy: str
) -> None:
    found = [finding for finding in faults(machine(tmp_path, changes, **given)) if finding.subject == subject]
    assert len(found) == 1
    assert told in found[0].told
    assert remedy in found[0].remedy


def test_a_governor_that_goes_up_under_load_is_no_fault(tmp_path: Path) -> None:
    driver = {"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate"}
    assert faults(machine(tmp_path, POWERSAVE | driver)) == []


def test_a_port_of_another_program_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        found = faults(machine(tmp_path, port=number), service.LOOKS)
    assert [finding.subject for finding in found] == ["port"]
    assert f"127.0.0.1 port {number}" in found[0].told and f"({os.getpid()})" in found[0].told


def test_a_port_of_our_daemon_is_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        write_state(daemon_state(port=number))
        assert faults(machine(tmp_path, port=number), service.LOOKS) == []


def test_a_state_file_of_a_killed_daemon_is_found(tmp_path: Path) -> None:
    write_state(daemon_state(pid=2**22 + 1, port=8441))
    found = faults(machine(tmp_path), files.LOOKS)
    assert [(finding.subject, finding.grade) for finding in found] == [("state", "advice")]
    assert str(state_folder() / "serve-8441.json") in found[0].told


def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")  # in the place of a folder: root may write anywhere
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    found = faults(machine(tmp_path / "root"), files.LOOKS)
    assert [(finding.subject, finding.grade) for finding in found] == [("state", "fault")]


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 2**28}))
    found = faults(machine(tmp_path), files.LOOKS)
    assert [(finding.subject, finding.told[:15]) for finding in found] == [("disk", "0.2 GiB are fre")]


def test_packed_weights_of_another_version_are_found(tmp_path: Path, tiny: Path) -> None:
    opened = open_model(tiny)
    store = PackedStore(packed_folder(), opened)
    store.save(pack(opened))
    assert faults(machine(tmp_path / "root", model=tiny), model.LOOKS) == []
    with store.path.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff")
    found = faults(machine(tmp_path / "root", model=tiny), model.LOOKS)
    assert [(finding.subject, finding.grade) for finding in found] == [("packed weights", "fault")]
    assert "another version" in found[0].told and f"rm {store.path}" in found[0].remedy


def test_a_model_that_is_none_is_found(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF no")
    found = faults(machine(tmp_path / "root", model=tmp_path / "bad.gguf"), model.LOOKS)
    assert [(finding.subject, finding.grade) for finding in found] == [("model", "fault")]


def test_a_model_that_does_not_fit_is_found(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "free_memory", lambda: 2**20)
    found = faults(machine(tmp_path / "root", model=tiny), model.LOOKS)
    assert [(finding.subject, finding.remedy[:13]) for finding in found] == [("model", "isotherm plan")]


def test_a_plan_of_another_model_is_found(tmp_path: Path, tiny: Path) -> None:
    save_plan(plan_of(), tmp_path / "plan.json")
    found = faults(machine(tmp_path / "root", model=tiny, plan=tmp_path / "plan.json"), model.LOOKS)
    assert [(finding.subject, finding.grade) for finding in found] == [("plan", "fault")]


def test_a_trace_of_another_model_is_found(tmp_path: Path, tiny: Path) -> None:
    save_trace(tmp_path / "trace.npz", decoded())
    found = faults(machine(tmp_path / "root", model=tiny, trace=tmp_path / "trace.npz"), model.LOOKS)
    assert [(finding.subject, finding.grade) for finding in found] == [("trace", "fault")]


@pytest.mark.parametrize(("measured", "grade"), [(0.001, "fault"), (1e9, "good"), (None, "advice")])
def test_a_promise_that_is_not_kept_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: float | None, grade: str
) -> None:
    save_plan(plan_of(), tmp_path / "plan.json")
    write_state(daemon_state(port=8442))
    monkeypatch.setattr(service, "measured_rate", lambda url, key: measured)
    patient = machine(tmp_path / "root", plan=tmp_path / "plan.json", port=8442)
    assert [finding.grade for finding in service.promise(patient)] == [grade]


@pytest.mark.parametrize(("key", "grade"), [(None, "fault"), ("wrong", "fault"), ("right", "advice")])
def test_a_daemon_that_asks_for_a_key_is_told_of(tmp_path: Path, key: str | None, grade: str) -> None:
    save_plan(plan_of(), tmp_path / "plan.json")
    with serving(make_service(api_keys=frozenset({key_digest("right")}))) as number:
        write_state(daemon_state(port=number, url=f"http://127.0.0.1:{number}"))
        patient = machine(tmp_path / "root", plan=tmp_path / "plan.json", port=number, api_key=key)
        found = list(service.promise(patient))
    assert [finding.grade for finding in found] == [grade]
    assert key == "right" or ("401" in found[0].told and "--api-key-file" in found[0].remedy)


@pytest.mark.parametrize(("error", "grade"), [(0.004, "good"), (0.3, "fault")])
def test_kernels_that_compute_something_else_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float, grade: str
) -> None:
    wrong = type("Row", (), {"us": 100.0, "product_error": error})
    monkeypatch.setattr(processor, "measure_moe", lambda options, progress: [wrong])
    assert [finding.grade for finding in processor.layer(machine(tmp_path))] == [grade]


@pytest.mark.parametrize(
    ("rates", "grade"),
    [({1: 20.0, 2: 40.0}, "good"), ({1: 10.0, 2: 20.0}, "fault"), ({1: 40.0, 2: 29.0}, "fault")],
)
def test_memory_that_reads_slowly_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], grade: str
) -> None:
    usual = type("Kept", (), {"cpu": type("Cpu", (), {"read_gb_s": {2: type("Rate", (), {"value": 38.0})}})})
    monkeypatch.setattr(memory, "kept_profile", lambda threads: usual)
    monkeypatch.setattr(memory, "_reads", lambda patient, threads: rates[threads])
    assert [finding.grade for finding in memory.bandwidth(machine(tmp_path))] == [grade]


def test_a_look_that_breaks_hides_no_other(tmp_path: Path) -> None:
    def broken(patient: Patient) -> Iterator[Finding]:
        raise RuntimeError("no such thing")
        yield

    found = examine(machine(tmp_path), lambda stage, done, total: None, (broken, *cards.LOOKS))
    assert [finding.grade for finding in found] == ["fault", "good"]
    assert "no such thing" in found[0].told


def test_this_machine_is_examined(tiny: Path) -> None:
    result = run("doctor", tiny, "--port", 0, "--json")
    found = [Finding(**each) for each in json.loads(result.stdout)]
    assert {"instructions", "threads", "a layer", "bandwidth", "model", "packed weights"} <= {
        each.subject for each in found
    }
    assert next(each for each in found if each.subject == "a layer").grade == "good"
    assert all(each.remedy for each in found if each.grade != "good")
    assert result.exit_code == (worst(found) == "fault")


def test_the_table_is_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"")
    result = run("doctor", tmp_path / "bad.gguf", "--port", 0)
    assert result.exit_code == 1
    assert any(line.startswith("model ") and "wrong" in line for line in result.stdout.splitlines())
