"""Fair shares, and heat maps that are narrower than the model."""

import numpy as np
from isotherm.placement.heat import fair_shares, squeezed


def test_fair_shares_are_of_each_layer_by_itself() -> None:
    counts = np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 6.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(fair_shares(counts), [[1, 1, 1, 1], [0, 3, 0.5, 0.5], [1, 1, 1, 1]])


def test_a_narrow_map_loses_no_hot_expert() -> None:
    heat = np.array([[0.0, 4.0, 1.0, 2.0, 3.0], [1.0, 0.0, 0.0, 0.0, 5.0]])
    np.testing.assert_array_equal(squeezed(heat, 2), [[4, 3], [1, 5]])
    np.testing.assert_array_equal(squeezed(heat, 3), [[4, 2, 3], [1, 0, 5]])


def test_a_wide_map_stays_as_it_is() -> None:
    heat = np.array([[0.0, 4.0, 1.0]])
    np.testing.assert_array_equal(squeezed(heat, 3), heat)
    np.testing.assert_array_equal(squeezed(heat, 100), heat)
