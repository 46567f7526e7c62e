"""This machine as if it had been calibrated, with made-up numbers: for daemons that would measure it first."""

from dataclasses import replace

from isotherm import __version__
from isotherm.cpu_kernels.features import host_tier
from isotherm.cpu_kernels.topology import read_topology
from isotherm.daemon.machine import cpu_name
from isotherm.daemon.paths import hardware_file
from isotherm.placement.hardware_file import save_profile
from support.plans import with_cards


def keep_profile(threads: int) -> None:
    """Into the state folder of this process's environment."""
    made = with_cards()
    cores = max(1, len(read_topology().cores))
    cpu = replace(made.cpu, name=cpu_name(), tier=host_tier().name, threads=threads, cores=cores)
    path = hardware_file(threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_profile(replace(made, name=cpu.name, cpu=cpu, isotherm_version=__version__), path)
