"""Fits a router to hidden states, so that tokens of one kind go to the same experts, as in trained models."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

MAX_ROUNDS = 50
MEAN_MARGIN = 1.0  # mean router logit of a token's best expert over its second; softmax makes of it about 0.73 and 0.27


def fit_router(states: Floats, num_experts: int, seed: int) -> NDArray[np.float32]:
    """Router rows [E, H] from the states [T, H] that it will see: scaled centres of a spherical k-means.

    A router has no bias, so clusters must be told apart by directions alone. All states lean towards one common
    direction, which would drown the rest: it is projected out of the states and therefore absent from every row.
    Raises ValueError where there are fewer states than experts.
    """
    if len(states) < num_experts:
        raise ValueError(f"{len(states)} states are too few to fit {num_experts} experts")
    common = states.mean(axis=0)
    common /= np.linalg.norm(common)
    deviations = states - np.outer(states @ common, common)  # [T, H]
    centres = spherical_k_means(_unit(deviations), num_experts, np.random.default_rng(seed))  # [E, H]
    logits = np.sort(states @ centres.T, axis=1)  # [T, E]
    margin = float(np.mean(logits[:, -1] - logits[:, -2]))
    return (centres * (MEAN_MARGIN / margin)).astype(np.float32)


def spherical_k_means(points: Floats, num_clusters: int, rng: np.random.Generator) -> Floats:
    """Unit centres [K, H] of unit points [T, H]; a point belongs to the centre with the largest cosine."""
    centres = _first_centres(points, num_clusters, rng)
    members = np.full(len(points), -1)
    for _ in range(MAX_ROUNDS):
        cosines = points @ centres.T  # [T, K]
        nearest = cosines.argmax(axis=1)
        if np.array_equal(nearest, members):
            break
        members = nearest
        for cluster in range(num_clusters):
            chosen = points[members == cluster]
            # An empty cluster starts again at the point that its own centre describes worst.
            centres[cluster] = chosen.sum(axis=0) if len(chosen) else points[cosines.max(axis=1).argmin()]
        centres = _unit(centres)
    return centres


def _first_centres(points: Floats, num_clusters: int, rng: np.random.Generator) -> Floats:
    """k-means++: each next centre is drawn with a chance that grows with the squared distance to those before."""
    chosen = [int(rng.integers(len(points)))]
    while len(chosen) < num_clusters:
        cosine = (points @ points[chosen].T).max(axis=1)  # [T]
        distance = np.clip(1 - cosine.astype(np.float64), 1e-9, None)  # half the squared distance of unit vectors
        chosen.append(int(rng.choice(len(points), p=distance / distance.sum())))
    return points[chosen].copy()


def _unit(rows: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, np.finfo(rows.dtype).tiny)
