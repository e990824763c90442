"""The compiled loop: the same solve as that of the shared loop."""

from __future__ import annotations

import gc
import shutil
import weakref

import pytest
import torch
from torch import Tensor, nn

from infocnf.ode import Status, solve
from infocnf.ode.compiled import _LOOPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler"),
]


class Pushed(nn.Module):
    """Slopes of a state that is pushed by its context, and of the distance it has come."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, t: Tensor, state: tuple[Tensor, Tensor], push: Tensor) -> tuple[Tensor, ...]:
        z = state[0]
        slopes = 3.0 * torch.tanh(self.map(z)) + push * torch.cos(8.0 * t)
        return slopes, slopes.square().sum(1)


@pytest.mark.parametrize(("method", "auxiliary"), [("dopri5", 0), ("heun", 1)])
def test_the_compiled_loop_takes_the_same_steps(method: str, auxiliary: int) -> None:
    torch.manual_seed(0)
    field, y = Pushed(), (2.0 * torch.randn(5, 3), torch.zeros(5))
    options = {"context": (torch.randn(5, 3),), "method": method, "auxiliary": auxiliary}
    for interval, tolerance in (((0.0, 2.0), 1e-3), ((0.0, 2.0), 1e-6)):
        with torch.no_grad():
            options["tolerance"] = tolerance
            eager = solve(field, y, interval, **options)
            found = solve(field, y, interval, **options, compile=True)
        assert torch.equal(found.stats.accepted, eager.stats.accepted)
        assert torch.equal(found.stats.rejected, eager.stats.rejected)
        again = 1 if method == "heun" else 0  # every attempt evaluates its first slopes
        assert found.stats.forward == eager.stats.forward + again
        assert found.first_step == pytest.approx(eager.first_step)
        assert torch.equal(found.time, eager.time) and found.done
        for mine, theirs in zip(found.state, eager.state, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_failures_have_the_status_of_the_eager_loop_and_loops_die_with_their_field() -> None:
    def field(t: Tensor, y: Tensor) -> Tensor:
        return y * y  # grows without bounds at time 1 / y

    state = torch.tensor([[0.5], [1.0]], dtype=torch.float32)
    with torch.no_grad():
        for interval, limit in (((0.0, 0.5), 4096), ((0.0, 2.0), 4096), ((0.0, 2.0), 5)):
            options = {"tolerance": 1e-4, "max_steps": limit}
            eager = solve(field, state, interval, **options)
            found = solve(field, state, interval, **options, compile=True)
            assert found.status == eager.status
            assert found.stats.forward == eager.stats.forward
            assert found.state.isnan().all() == (found.status != Status.DONE)
    alive = weakref.ref(field)
    assert field in _LOOPS
    torch._dynamo.reset()
    del field
    gc.collect()
    assert alive() is None


def test_what_cannot_be_compiled_is_refused_in_a_sentence() -> None:
    def asks(t: Tensor, y: Tensor) -> Tensor:
        return y if y.sum().item() > 0.0 else -y

    with torch.no_grad(), pytest.raises(ValueError, match="cannot be compiled"):
        solve(asks, torch.ones(2, 1), (0.0, 1.0), compile=True)
    with pytest.raises(ValueError, match="individual"):
        solve(asks, torch.ones(2, 1), (0.0, 1.0), compile=True, stepping="individual")


def test_gradients_are_those_without_compilation() -> None:
    found = []
    for compile in (False, True):
        start = torch.linspace(-1.0, 1.0, 3).unsqueeze(1).requires_grad_()
        solution = solve(lambda t, y: torch.sin(3.0 * y), start, (0.0, 1.0), compile=compile)
        found.append(torch.autograd.grad(solution.state.sum(), start)[0])
    assert torch.equal(*found)
