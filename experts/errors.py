"""Errors of the model side.

ModelError(ValueError)            the model cannot be served; the text names the file, the tensor and the remedy
├── CheckpointError               a file is broken: truncated, wrong magic, impossible sizes, a missing tensor
├── UnsupportedModelError         a sound file that asks for what is not implemented: architecture, format, rope scaling
├── KernelError                   this machine computes the model wrongly, by whatever kernel
└── DeviceFullError               what shall lie on an accelerator does not fit into its memory

CacheLostError(RuntimeError)      not of the model: keys and values that steps had left are gone
"""

from pathlib import Path


class ModelError(ValueError):
    """The model cannot be served; the message names the input and the remedy."""


class CheckpointError(ModelError):
    """A checkpoint file is broken."""


class UnsupportedModelError(ModelError):
    """The checkpoint asks for something that is not implemented."""


class KernelError(ModelError):
    """Kernels give wrong numbers on this machine: `fault` says which, `folder` is where compiled ones are kept."""

    def __init__(self, fault: str, folder: Path) -> None:
        super().__init__(
            f"the start-up self-test failed: {fault}; delete the compiled kernels in {folder} and start again, and if "
            "that does not help, test this machine's memory"
        )


class DeviceFullError(ModelError):
    """An accelerator has too little memory for its part of a placement. Nothing was taken of it."""


class CacheLostError(RuntimeError):
    """The keys and values of earlier steps are gone, for all sequences. The runner can go on: with sequences that are
    computed from their first token on."""
