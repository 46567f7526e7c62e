"""Random decoders: placement is told of the weights that are there."""

import pytest
from isotherm.cpu_kernels.seating import Seating
from isotherm.experts.random_decoder import first_layers, random_decoder, random_shape, small_spec


@pytest.mark.parametrize("layers", [1, 8])
def test_the_shape_is_that_of_the_weights(layers: int) -> None:
    spec = first_layers(small_spec(64), layers)
    shape, weights = random_shape(spec, "q8", "int16"), random_decoder(spec, "q8", Seating(1))
    assert shape.nbytes == weights.nbytes
    assert shape.moe_layers == tuple(range(layers))
    for products, roles in ((shape.layers[-1].dense, weights.matrices), (shape.layers[-1].expert, weights.banks)):
        named = {role.rsplit(".", 1)[1]: one for role, one in roles.items() if role.startswith(f"layers.{layers - 1}.")}
        for product in products:
            one = named.pop(product.role)
            matrix = one[0] if isinstance(one, list) else one
            assert (product.kind, product.nbytes) == (matrix.kind, matrix.nbytes)
        assert not named
