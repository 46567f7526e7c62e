"""The paged KV cache's books: which block holds what, who uses it, and which prefix can be reused.

A block is `block_size` positions of one sequence. A full block is *cached*: addressable by a hash of its tokens and of
all tokens before it. It stays so after its last user has left, until the block is needed again.

Two rules keep reuse safe. A sequence that uses a cached block also uses its whole prefix, and blocks are freed tail
first; so no cached block outlives its parent, and the parent's block id is a proof of the prefix. And a hit compares
the block's tokens and its parent, not only the hash.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

Digest = Callable[[bytes], bytes]


def _blake2b(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class _Cached:
    """Why a block may be reused: its key, its tokens, and the block before it (the salt for a first block)."""

    key: bytes
    tokens: tuple[int, ...]
    parent: int | str


class BlockTable:
    """The blocks of one sequence in position order. `tokens` belongs to the sequence and only ever grows."""

    __slots__ = ("blocks", "keys", "num_registered", "salt", "tokens")

    def __init__(self, tokens: list[int], salt: str) -> None:
        self.tokens = tokens
        self.salt = salt
        self.blocks: list[int] = []
        self.keys: list[bytes] = []  # of full blocks, each hashed once
        self.num_registered = 0  # leading blocks that are cached

    @property
    def parent(self) -> int | str:
        """What the next block to register follows."""
        return self.blocks[self.num_registered - 1] if self.num_registered else self.salt


class BlockPool:
    """Ref-counted blocks 0 .. num_blocks - 1 with hash-addressed reuse. Counters are in tokens.

    num_resident: how many may have users at once, since whoever computes with them has room for no more; None is all.
    """

    def __init__(
        self, num_blocks: int, block_size: int, digest: Digest = _blake2b, *, num_resident: int | None = None
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} positions is empty; both must be positive")
        num_resident = num_blocks if num_resident is None else num_resident
        if not 1 <= num_resident <= num_blocks:
            raise ValueError(f"of {num_blocks} blocks {num_resident} cannot be in use at once; 1 to {num_blocks} can")
        self.num_blocks = num_blocks
        self.num_resident = num_resident
        self.block_size = block_size
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.num_evictions = 0
        self._digest = digest
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # least recently used first
        self._cached: list[_Cached | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks without a user that may get one, cached ones included."""
        return len(self._free) - (self.num_blocks - self.num_resident)

    @property
    def num_cached(self) -> int:
        return len(self._index)

    @property
    def cached_blocks(self) -> Collection[int]:
        """Blocks whose content can be found."""
        return self._index.values()

    def match_prefix(self, table: BlockTable) -> list[int]:
        """Cached blocks of the longest known prefix of the table's tokens; takes nothing.

        At least one token is left out, because its logits are wanted.
        """
        hits: list[int] = []
        parent: int | str = table.salt
        for i in range((len(table.tokens) - 1) // self.block_size):
            block = self._index.get(self._key(table, i))
            if block is None or not self._holds(block, self._tokens(table, i), parent):
                break
            hits.append(block)
            parent = block
        return hits

    def is_coming(self, table: BlockTable, num_hits: int, other: BlockTable) -> bool:
        """Whether the block that `table` lacks after its hits is one that `other`, in use, has yet to compute."""
        end = (num_hits + 1) * self.block_size
        return (
            end < len(table.tokens)
            and end <= len(other.tokens)
            and self._key(table, num_hits) == self._key(other, num_hits)
        )

    def num_needed(self, num_tokens: int, hits: Sequence[int] = ()) -> int:
        """Free blocks that `open` would take for `num_tokens` positions: new ones, and hits that nobody uses."""
        return self._num_covering(num_tokens) - sum(self._refs[block] > 0 for block in hits)

    def open(self, table: BlockTable, hits: Sequence[int], num_tokens: int) -> bool:
        """Give an empty table its `hits` and new blocks up to `num_tokens` positions. False: too few, nothing taken."""
        if table.blocks:
            raise RuntimeError(f"the table already holds {len(table.blocks)} blocks")
        if self.num_needed(num_tokens, hits) > self.num_free:
            return False
        for block in hits:  # before new blocks are taken, which could evict them
            self._claim(block)
        table.blocks.extend(hits)
        table.num_registered = len(hits)
        self.num_queried_tokens += len(table.tokens)
        self.num_hit_tokens += len(hits) * self.block_size
        return self.extend(table, num_tokens)

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Append new blocks until the table covers `num_tokens` positions. False: too few, nothing taken."""
        count = self._num_covering(num_tokens) - len(table.blocks)
        if count > self.num_free:
            return False
        table.blocks.extend(self._take() for _ in range(count))
        return True

    def register(self, table: BlockTable, num_computed: int) -> None:
        """Make the full blocks of the first `num_computed` positions addressable.

        A block that another sequence has registered meanwhile is exchanged for that one: equal tokens have equal KV.
        """
        for i in range(table.num_registered, num_computed // self.block_size):
            key, tokens, parent = self._key(table, i), self._tokens(table, i), table.parent
            block = table.blocks[i]
            known = self._index.get(key)
            if known is None:
                self._cached[block] = _Cached(key, tokens, parent)
                self._index[key] = block
            elif self._holds(known, tokens, parent):
                self._claim(known)
                table.blocks[i] = known
                self._drop(block)
            else:
                return  # two prefixes with one hash: the first keeps it, what follows here cannot be addressed
            table.num_registered = i + 1

    def release(self, table: BlockTable) -> None:
        """Give up all blocks, tail first, so that a tail is evicted before its head. The table can be opened again."""
        for block in reversed(table.blocks):
            self._drop(block)
        table.blocks.clear()
        table.num_registered = 0

    def forget(self) -> None:
        """What the blocks hold is gone: none can be found any more. Nobody may use one."""
        if used := self.num_blocks - len(self._free):
            raise RuntimeError(f"{used} blocks are in use and cannot be forgotten")
        self._cached = [None] * self.num_blocks
        self._index.clear()

    def forget_unused(self) -> list[int]:
        """What blocks without a user hold is gone. Gives those blocks, which may be written to at any time."""
        for block in self._free:
            cached = self._cached[block]
            if cached is not None:
                del self._index[cached.key]
                self._cached[block] = None
        return sorted(self._free)

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Compare the books with the tables of all users. Raises RuntimeError with the numbers."""
        owners = Counter(block for table in tables for block in table.blocks)
        problems = [
            f"block {block} has {refs} references but {owners[block]} owners"
            for block, refs in enumerate(self._refs)
            if refs != owners[block]
        ]
        problems += [
            f"block {block} is free but has {self._refs[block]} users" for block in self._free if self._refs[block]
        ]
        used = sum(refs > 0 for refs in self._refs)
        if self.num_free + used != self.num_resident:
            problems.append(f"{self.num_free} free + {used} used blocks are not {self.num_resident}")
        if used > self.num_resident:
            problems.append(f"{used} blocks are in use, but only {self.num_resident} may be")
        problems += self._index_problems()
        if problems:
            raise RuntimeError("the KV block pool is inconsistent: " + "; ".join(problems))

    def _index_problems(self) -> list[str]:
        problems = []
        num_keyed = sum(cached is not None for cached in self._cached)
        if num_keyed != len(self._index):
            problems.append(f"{num_keyed} blocks have a key but the index has {len(self._index)}")
        for key, block in self._index.items():
            cached = self._cached[block]
            if cached is None or cached.key != key:
                problems.append(f"the index names block {block}, which has another key")
            elif isinstance(cached.parent, int):
                if self._cached[cached.parent] is None:
                    problems.append(f"block {block} outlived its parent {cached.parent}")
                elif self._refs[block] > self._refs[cached.parent]:
                    problems.append(f"block {block} has more users than its parent {cached.parent}")
        return problems

    def _num_covering(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _tokens(self, table: BlockTable, i: int) -> tuple[int, ...]:
        return tuple(table.tokens[i * self.block_size : (i + 1) * self.block_size])

    def _key(self, table: BlockTable, i: int) -> bytes:
        """Key of full block i: digest of the parent's key and 8 bytes per token; the root is the salt's digest."""
        keys = table.keys
        while len(keys) <= i:
            parent = keys[-1] if keys else self._digest(table.salt.encode())
            keys.append(self._digest(parent + array("q", self._tokens(table, len(keys))).tobytes()))
        return keys[i]

    def _holds(self, block: int, tokens: tuple[int, ...], parent: int | str) -> bool:
        cached = self._cached[block]
        return cached is not None and cached.parent == parent and cached.tokens == tokens

    def _claim(self, block: int) -> None:
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        cached = self._cached[block]
        if cached is not None:  # forget the content before the block is written again
            del self._index[cached.key]
            self._cached[block] = None
            self.num_evictions += 1
        self._refs[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self._refs[block] -= 1
        if self._refs[block] == 0:
            self._free[block] = None
            if self._cached[block] is None:  # worth nothing: reuse it before any cached block
                self._free.move_to_end(block, last=False)
