"""Where measurements should lie around a prediction: nine in ten of them."""

import math

NINETY = 1.645  # standard deviations around a mean that hold 90 % of a normal distribution


def interval(value: float, relative_error: float) -> tuple[float, float]:
    """low and high; relative_error: one standard deviation. Never below 0, and as far up as down by factors."""
    factor = math.exp(NINETY * relative_error)
    return value / factor, value * factor


def together(*errors: float) -> float:
    """The deviation of a sum of independent errors."""
    return math.hypot(*errors)
