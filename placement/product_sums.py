"""Times of several products one after the other: of a list of them, and of an expert by how many tokens it gets."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from .device_cost import Floats
from .shape import Product


class ProductSums(ABC):
    """What all devices have in common; each knows what one product takes. expert_ms: of an expert that is touched,
    beside its products."""

    def __init__(self, expert_ms: float = 0.0) -> None:
        self._each_ms = expert_ms
        self._experts: dict[tuple[tuple[Product, ...], int], Floats] = {}

    @abstractmethod
    def product_ms(self, product: Product, tokens: NDArray[np.int64]) -> Floats:
        """float64 [counts]: with 1 or more tokens."""

    def products_ms(self, products: tuple[Product, ...], tokens: int) -> float:
        """See `device_cost.DeviceCost`, and so below."""
        return float(sum(self.product_ms(product, np.array([tokens]))[0] for product in products)) if tokens else 0.0

    def expert_ms(self, products: tuple[Product, ...], most: int) -> Floats:
        key = products, most
        if key not in self._experts:
            touched = np.arange(1, most + 1)
            times = sum((self.product_ms(product, touched) for product in products), np.zeros(most))
            self._experts[key] = np.append(0.0, self._each_ms + times)
        return self._experts[key]
