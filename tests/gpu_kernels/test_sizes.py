"""Numbers of bytes in words."""

import pytest
from isotherm.gpu_kernels.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (2048, "2 KiB"),
        (2049, "2,049 bytes"),
        (1 << 20, "1 MiB"),
        (3_220_000, "3.07 MiB"),
        (3 << 29, "1.5 GiB"),
        (100 << 30, "100 GiB"),
    ],
)
def test_sizes_are_short(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GiB", 2 << 30),
        ("0.5 GiB", 1 << 29),
        ("3MiB", 3 << 20),
        ("4KiB", 4 << 10),
        ("8GB", 8 * 10**9),
        ("1MB", 10**6),
        ("100", 100),
        ("100B", 100),
    ],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "two", "-1GiB", "infGiB", "nan", "1TiB", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no size; write one such as 2GiB \(units: GiB, MiB"):
        parse_size(text)
