"""ModelShape: what placement needs to know of a model: sizes and bytes, no weights."""

from collections import Counter
from dataclasses import dataclass, replace

CPU = -1  # the device number of the host; accelerators count from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix that tokens are multiplied by. kind: of its packed weights; nbytes: of it packed."""

    role: str
    kind: str
    rows: int
    columns: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """dense: what every token is multiplied by: q, k, v, o, and a router, shared expert or feed-forward part.

    expert: gate, up and down of one expert, num_experts such; none in a dense layer. kv_bytes: of one position's keys
    and values. window: how many positions a token sees, None for all. vector_bytes: of norms and biases.
    sent_bytes: of a token as the CPU hands it to experts elsewhere; None for plain values.
    """

    dense: tuple[Product, ...]
    expert: tuple[Product, ...] = ()
    num_experts: int = 0
    top_k: int = 0
    kv_bytes: int
    window: int | None = None
    vector_bytes: int = 0
    sent_bytes: int | None = None

    @property
    def dense_bytes(self) -> int:
        """Of all but the experts."""
        return sum(product.nbytes for product in self.dense) + self.vector_bytes

    @property
    def expert_bytes(self) -> int:
        """Of one expert."""
        return sum(product.nbytes for product in self.expert)

    @property
    def nbytes(self) -> int:
        return self.dense_bytes + self.num_experts * self.expert_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """fingerprint: of the checkpoint, in hex. kv_kind: numbers of the KV cache; kv_block: positions of one page.

    tied: whether the head is the embedding, so that they are there once. vector_bytes: of the final norm. whole: False
    where only a header or a config.json was there, of which the fingerprint then is.
    """

    name: str
    fingerprint: str
    layers: tuple[LayerShape, ...]
    embed: Product
    head: Product
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_kind: str
    kv_block: int
    max_context: int
    tied: bool = False
    vector_bytes: int = 0
    whole: bool = True

    @property
    def sizes(self) -> "ModelShape":
        """Without what model it is: the same of a header and of the whole file."""
        return replace(self, name="", fingerprint="", whole=True)

    @property
    def nbytes(self) -> int:
        """Of all packed weights."""
        ends = self.embed.nbytes + (0 if self.tied else self.head.nbytes) + self.vector_bytes
        return sum(layer.nbytes for layer in self.layers) + ends

    @property
    def kv_bytes(self) -> int:
        """Of one position in all layers."""
        return sum(layer.kv_bytes for layer in self.layers)

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """The numbers of the layers with experts."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.num_experts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The packed kinds of the matrices that tokens are multiplied by, that with the most bytes first."""
        sizes = Counter({self.head.kind: self.head.nbytes})
        for layer in self.layers:
            for products, count in ((layer.dense, 1), (layer.expert, layer.num_experts)):
                for product in products:
                    sizes[product.kind] += count * product.nbytes
        return tuple(kind for kind, _ in sizes.most_common())
