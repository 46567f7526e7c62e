"""Throughput over a window."""

from isotherm.daemon.throughput import Throughput


def test_rate_is_that_of_the_window() -> None:
    meter = Throughput(window_s=2.0)
    for now, count in ((0.0, 0), (1.0, 1000), (2.0, 1010), (3.0, 1020), (4.0, 1030)):
        meter.sample(now, count)
    assert meter.rate == 10.0


def test_rate_of_one_sample_is_zero() -> None:
    meter = Throughput()
    meter.sample(1.0, 50)
    assert meter.rate == 0.0
