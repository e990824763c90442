"""Random numbers that belong to a sample: functions of its seed, not of the batch it is in.

A generator's numbers depend on the order in which they are drawn, and so on the batch, on the
number of processes and on where a run was interrupted. These are computed from counters (SplitMix64
over seed, stream and position), so that a sample gets the same noise wherever and whenever it is
met.
"""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

__all__ = [
    "Stream",
    "combine_seeds",
    "draw_normal",
    "draw_uniform",
    "draw_words",
    "sample_seeds",
    "to_uniform",
]


class Stream(IntEnum):
    """What a sample's numbers are for; the same seed gives unrelated numbers in every stream.

    Continuous blocks use 0, 1, ... for their probes. The last four, and those below each, are of
    single factors and blocks.
    """

    FLIP = -2
    DEQUANTISE = -3
    NOISE = -4
    TIME = -5
    ERASE = -6
    ERASED = -7
    READ = -8
    EXCERPT = -9
    MOVE = -10
    DROPOUT = -16
    GUESS = -(2**16)
    TOLERANCE = -(2**20)
    LABEL = -(2**24)


def sample_seeds(x: Tensor) -> Tensor:
    """A seed ``(batch,)`` for each sample, from the bits of the sample itself.

    An evaluation that draws its probes from these is repeatable and does not depend on the batch,
    yet the probes of different samples are as good as independent, so that the errors of an average
    still cancel.
    """
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = (x.detach() + 0.0).flatten(1).contiguous().view(integer)  # -0 and 0 are one number
    position = torch.arange(bits.shape[1], device=x.device) * _GOLDEN
    return mix(mix(bits.long() + position).sum(1))


def combine_seeds(*parts: int | Tensor) -> Tensor:
    """One seed of several whole numbers, each a number or ``(batch,)``; their order matters.

    >>> combine_seeds(1, torch.tensor([2, 3])).shape, combine_seeds(1, 2) == combine_seeds(2, 1)
    (torch.Size([2]), tensor(False))
    """
    seed = torch.zeros((), dtype=torch.int64)
    for part in parts:
        seed = mix((seed + _GOLDEN) ^ mix(torch.as_tensor(part, dtype=torch.int64) + _GOLDEN))
    return seed


def draw_words(seeds: Tensor, size: int, stream: int = 0) -> Tensor:
    """Random 64-bit words ``(batch, size)``, unrelated between streams."""
    counter = torch.arange(size, device=seeds.device) * _GOLDEN
    start = mix(seeds ^ mix(torch.tensor(stream + 1, device=seeds.device)))
    return mix(start.unsqueeze(1) + counter)


def draw_uniform(seeds: Tensor, like: Tensor, stream: int = 0) -> Tensor:
    """Numbers in (0, 1) for states ``(batch, ...)``, a function of the seeds ``(batch,)`` alone.

    >>> seeds = combine_seeds(0, torch.arange(1000))
    >>> abs(draw_uniform(seeds, torch.zeros(1000, 3)).mean() - 0.5) < 0.02
    tensor(True)
    """
    words = draw_words(seeds, math.prod(like.shape[1:]), stream)
    return to_uniform(words).to(like).reshape(like.shape)


def draw_normal(seeds: Tensor, like: Tensor, stream: int = 0) -> Tensor:
    """Standard normal numbers for states ``(batch, ...)``, by Box and Muller."""
    words = draw_words(seeds, math.prod(like.shape[1:]), stream)
    first, second = to_uniform(words), to_uniform(next_words(words))
    normal = (-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()
    return normal.to(like).reshape(like.shape)


def to_uniform(words: Tensor) -> Tensor:
    """Numbers in (0, 1) from the upper 53 bits."""
    return (_shift(words, 11).double() + 0.5) * 2.0**-53


def next_words(words: Tensor) -> Tensor:
    """Another word for each, as good as independent of it."""
    return mix(words + _GOLDEN)


_GOLDEN = (
    -7046029254386353131
)  # 2**64 / golden ratio as a signed integer: the increment of SplitMix64


def mix(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit flips every output bit
    half of the time.
    """
    words = (words ^ _shift(words, 30)) * -4658895280553007687
    words = (words ^ _shift(words, 27)) * -7723592293110705685
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    """Logical right shift; PyTorch's own carries the sign along."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
