"""One training iteration of a four-block convolutional flow: this package against torchdiffeq and
torchode.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.measure import allocated, interleaved, median
from benchmarks.peers import Iteration, make_blocks, ours, torchdiffeq, torchode
from infocnf.flows import Chain

BLOCKS, HIDDEN, TOLERANCE = 4, 32, 1e-5
OURS, COMPILED = "infocnf checkpoint", "infocnf checkpoint, compiled"


@dataclass(frozen=True)
class Setting:
    """A size of images and batch, and how far the weights have grown."""

    title: str
    size: int
    batch: int
    strength: float
    rounds: int

    def data(self, turn: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Tensor]]:
        """Images and probes of a round, the same for every contender."""
        generator = torch.Generator().manual_seed(turn)
        shape = (self.batch, 1, self.size, self.size)
        x = torch.randn(shape, generator=generator)
        probes = [torch.randn(1, *shape, generator=generator).sign() for _ in range(BLOCKS)]
        return x.to(dtype), [probe.to(dtype) for probe in probes]


SETTINGS = (
    Setting("8x8 images, batch 64, weights as at the start of training", 8, 64, 1.0, 7),
    Setting("28x28 images, batch 8, weights as at the start of training", 28, 8, 1.0, 5),
    Setting("8x8 images, batch 64, weights 2.5 times larger: a field grown stiff", 8, 64, 2.5, 5),
)


def contenders(blocks: Chain) -> dict[str, tuple[Chain, Iteration]]:
    """Each with its own copy of the same weights."""
    made: dict[str, tuple[Chain, Iteration]] = {}

    def enter(name: str, make: object, *arguments: object) -> None:
        mine = copy.deepcopy(blocks)
        made[name] = (mine, make(mine, *arguments))  # type: ignore[operator]

    enter(OURS, ours, "checkpoint", TOLERANCE)
    enter("infocnf checkpoint, tolerance 1e-7", ours, "checkpoint", 1e-7)
    enter(COMPILED, ours, "checkpoint", TOLERANCE)
    for block in made[COMPILED][0].bijections:
        block.dynamics.compile(dynamic=False)
    enter("infocnf backprop", ours, "backprop", TOLERANCE)
    enter("infocnf adjoint", ours, "adjoint", TOLERANCE)
    for divergence, stacked in (("vjp", False), ("stacked", True)):
        if find_spec("torchdiffeq"):
            enter(f"torchdiffeq adjoint, {divergence}", torchdiffeq, "adjoint", TOLERANCE, stacked)
            enter(
                f"torchdiffeq backprop, {divergence}", torchdiffeq, "backprop", TOLERANCE, stacked
            )
        if find_spec("torchode"):
            enter(f"torchode backprop, {divergence}", torchode, TOLERANCE, stacked)

    return made


def gradient(blocks: Chain) -> Tensor:
    """All gradients as one vector, in double precision."""
    return torch.cat([p.grad.flatten().double() for p in blocks.parameters() if p.grad is not None])


def double_error(name: str, blocks: Chain, setting: Setting, truth: Tensor) -> float:
    """Gradient error without rounding: the solver's own, after a first solve to warm up."""
    if name == COMPILED:
        name = OURS
    mine, run = contenders(copy.deepcopy(blocks).double())[name]
    for _ in range(3 if name.startswith("infocnf") else 1):
        mine.zero_grad()
        run(*setting.data(1, torch.float64))
    return ((gradient(mine) - truth).norm() / truth.norm()).item()


def section(setting: Setting) -> str:
    """Markdown table of one setting."""
    torch.compiler.reset()  # the compiler keeps at most eight versions of a function
    torch.manual_seed(0)
    blocks = make_blocks((1, setting.size, setting.size), BLOCKS, HIDDEN, setting.strength)
    made = contenders(blocks)

    exact = copy.deepcopy(blocks).double()
    ours(exact, "checkpoint", 1e-9)(*setting.data(1, torch.float64))
    truth = gradient(exact)

    seconds = interleaved(
        {name: lambda turn, run=run: run(*setting.data(turn)) for name, (_, run) in made.items()},
        setting.rounds,
    )
    lines = [
        f"### {setting.title}\n",
        "| | NFE forward | NFE backward | median seconds | infocnf checkpoint / this | "
        "gradient error, float32 | the same, float64 | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (mine, run) in made.items():
        mine.zero_grad()
        x, probes = setting.data(1)
        counts: list[tuple[Tensor, int, int]] = []
        _, peak = allocated(
            lambda run=run, x=x, probes=probes, to=counts: to.append(run(x, probes))
        )
        error = ((gradient(mine) - truth).norm() / truth.norm()).item()
        _, forward, backward = counts[0]
        double = double_error(name, blocks, setting, truth)
        ratio = median(seconds[OURS]) / median(seconds[name])
        lines.append(
            f"| {name} | {forward} | {backward} | {median(seconds[name]):.3f} | {ratio:.2f} | "
            f"{error:.1e} | {double:.1e} | {peak / 1e6:.0f} |"
        )
        print(lines[-1], flush=True)

    return "\n".join(lines)
