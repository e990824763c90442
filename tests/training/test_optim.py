"""Orthogonal steps, against the singular value decomposition and PyTorch's own optimisers."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from infocnf.training.optim import Muon, orthogonalise


def descend(optimizer: torch.optim.Optimizer, weights: list[Tensor], steps: int) -> None:
    """Steps along gradients that are functions of the weights and the number of the step."""
    for step in range(steps):
        optimizer.zero_grad()
        sum((w.sin() * (w + step)).sum() for w in weights).backward()
        optimizer.step()


def some_weights() -> list[nn.Parameter]:
    """A convolution, a matrix, a narrow matrix, an offset."""
    torch.manual_seed(0)
    shapes = [(24, 16, 3, 3), (32, 16), (4, 64), (16,)]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


@pytest.mark.parametrize("shape", [(16, 144), (200, 20), (32, 32)])
def test_singular_values_become_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.double), full_matrices=False)
    values = torch.logspace(0, -1.5, min(shape), dtype=torch.double)
    for scale in (1e-6, 1e6):
        found = u.T @ orthogonalise(scale * (u * values) @ v) @ v.T
        assert (found - found.diag().diag()).abs().max() < 1e-8  # the same singular vectors
        assert 0.6 < found.diag().min() and found.diag().max() < 1.3
    assert not orthogonalise(torch.zeros(shape)).any()


def test_a_step_has_the_size_of_one_of_adam() -> None:
    convolution, *_ = weights = some_weights()
    before = convolution.detach().clone()
    descend(Muon([{"params": weights, "orthogonal": True}], lr=0.01, weight_decay=0.0), weights, 1)
    step = (convolution - before).detach()
    values = torch.linalg.svdvals(step.flatten(1)) / (0.2 * 0.01 * 144**0.5)
    assert 0.5 < values.min() and values.max() < 1.3
    # 24 directions of equal length in 24 x 144 numbers: a root mean square of 0.2 learning rates
    assert 0.0014 < step.square().mean().sqrt() < 0.0026


def test_it_is_adam_for_everything_else() -> None:
    ours, theirs = some_weights(), some_weights()
    descend(Muon([{"params": ours, "orthogonal": True}], lr=0.01, weight_decay=0.1), ours, 5)
    descend(torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1), theirs, 5)
    same = [torch.equal(one, two) for one, two in zip(ours, theirs, strict=True)]
    assert same == [False, False, True, True]

    ours, theirs = some_weights(), some_weights()
    descend(Muon(ours, lr=0.01), ours, 5)
    descend(torch.optim.AdamW(theirs, lr=0.01), theirs, 5)
    assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))


def test_matrices_step_as_those_of_pytorch() -> None:
    """Which computes in bfloat16: alike to its three digits."""
    (_, ours, *_), (_, theirs, *_) = some_weights(), some_weights()
    descend(Muon([{"params": [ours], "orthogonal": True}], lr=0.01, weight_decay=0.1), [ours], 5)
    peer = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    start = theirs.detach().clone()
    descend(peer, [theirs], 5)
    assert (ours - theirs).norm() < 0.03 * (theirs - start).norm()


def test_it_goes_on_from_its_state() -> None:
    found = []
    for interrupted in (False, True):
        weights = some_weights()
        optimizer = Muon([{"params": weights, "orthogonal": True}], lr=0.01)
        descend(optimizer, weights, 4)
        if interrupted:
            state = deepcopy(optimizer.state_dict())
            optimizer = Muon([{"params": weights}], lr=0.5)
            optimizer.load_state_dict(state)
        descend(optimizer, weights, 3)
        found.append(weights)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
