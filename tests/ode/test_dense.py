"""States at many times of one solve, against SciPy, against solves that end there, and by their
gradients.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import RK23, RK45, solve_ivp
from torch import Tensor, nn

from infocnf.ode import TABLEAUS, Status, solve, solve_at
from infocnf.ode.tableaus import BOSH3, DOPRI5


def pendulum(t: Tensor, y: Tensor) -> Tensor:
    force = -torch.sin(y[:, 0]) - 0.1 * y[:, 1] + 0.3 * torch.cos(t)
    return torch.stack([y[:, 1], force], 1)


STARTS = torch.tensor([[0.5, 0.0], [2.0, 1.0], [-1.0, 2.5]], dtype=torch.float64)


def truth(start: Tensor, times: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    def field(t: float, y: np.ndarray) -> list[float]:
        return [y[1], -math.sin(y[0]) - 0.1 * y[1] + 0.3 * math.cos(t)]

    found = solve_ivp(
        field, span, start.numpy(), method="DOP853", rtol=1e-12, atol=1e-12, dense_output=True
    )
    return found.sol(times).T


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
@pytest.mark.parametrize("stepping", ["shared", "individual"])
@pytest.mark.parametrize("span", [(0.0, 7.0), (5.0, -2.0)])
def test_states_at_arbitrary_times_are_scipys(
    method: str, stepping: str, span: tuple[float, float]
) -> None:
    times = torch.from_numpy(np.random.default_rng(0).uniform(*sorted(span), (3, 50)))
    times[:, 0], times[:, 1] = span[0], span[1]
    found, solution = solve_at(
        pendulum, STARTS, times, span, tolerance=1e-8, method=method, stepping=stepping
    )
    for i, start in enumerate(STARTS):
        expected = truth(start, times[i].numpy(), span)
        assert np.abs(found[i].numpy() - expected).max() < 2e-6
    end = found[:, 1]
    torch.testing.assert_close(end, solution.state, rtol=0, atol=1e-12)


def test_the_polynomials_are_scipys() -> None:
    np.testing.assert_allclose(DOPRI5.dense, RK45.P, rtol=0, atol=1e-15)
    np.testing.assert_allclose(BOSH3.dense, RK23.P, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", TABLEAUS)
def test_polynomials_end_in_the_step_and_have_their_order(name: str) -> None:
    """At the end of the step they are its result, and they integrate powers of time exactly."""
    table = TABLEAUS[name]
    np.testing.assert_allclose(table.dense.sum(1), table.b, atol=1e-13)
    theta = np.linspace(0.1, 0.9, 5)
    weights = (theta[:, None] ** np.arange(1, table.dense.shape[1] + 1)) @ table.dense.T
    for power in range({5: 4, 4: 3}.get(table.order, min(table.order, 3))):
        moments = weights @ table.nodes**power
        np.testing.assert_allclose(moments, theta ** (power + 1) / (power + 1), atol=1e-12)


@pytest.mark.parametrize(("method", "steps"), [("euler", 2000), ("midpoint", 100), ("rk4", 40)])
def test_methods_of_fixed_steps_have_states_inside_them(method: str, steps: int) -> None:
    times = torch.linspace(0.0, 3.0, 17, dtype=torch.float64)
    found, _ = solve_at(pendulum, STARTS, times, (0.0, 3.0), method=method, steps=steps)
    expected = truth(STARTS[0], times.numpy(), (0.0, 3.0))
    assert np.abs(found[0].numpy() - expected).max() < 5e-3


def test_times_for_all_and_times_for_each_are_the_same() -> None:
    times = torch.linspace(0.0, 4.0, 30, dtype=torch.float64)
    common, _ = solve_at(pendulum, STARTS, times, (0.0, 4.0))
    each, _ = solve_at(pendulum, STARTS, times.expand(3, -1), (0.0, 4.0))
    torch.testing.assert_close(common, each, rtol=0, atol=1e-14)


def test_a_sample_depends_neither_on_other_samples_nor_on_the_number_of_times() -> None:
    times = torch.rand(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    more = torch.cat([times, torch.full((3, 5), torch.nan, dtype=torch.float64)], 1)
    more[1, 20:] = torch.linspace(0.1, 0.9, 5)
    alone, _ = solve_at(pendulum, STARTS[1:2], times[1:2], stepping="individual")
    together, _ = solve_at(pendulum, STARTS, more, stepping="individual")
    assert torch.equal(together[1, :20], alone[0])
    assert together[0, 20:].isnan().all() and not together[:, :20].isnan().any()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    def forward(self, t: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        time = t.expand(len(y)).unsqueeze(1)
        return scale.unsqueeze(1) * self.layers(torch.cat([y, time], 1))


@pytest.mark.parametrize("stepping", ["shared", "individual"])
@pytest.mark.parametrize("kind", ["common", "each"])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4"])
def test_gradients_are_those_of_the_discrete_solution(
    stepping: str, kind: str, method: str
) -> None:
    """Against a solve that autograd records, stopped at each time by a step of its own: the same
    up to the tolerance; and against finite differences of the same steps for a linear field.
    """
    net = Net()
    start = STARTS.clone().requires_grad_()
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    times = torch.tensor([0.0, 0.3, 0.31, 1.0], dtype=torch.float64)
    given = times if kind == "common" else torch.stack([times, times * 0.9, times])
    steps = {"steps": 50} if method == "rk4" else {}
    found, solution = solve_at(
        net,
        start,
        given,
        tolerance=1e-10,
        method=method,
        stepping=stepping,
        context=(scale,),
        **steps,
    )
    weights = torch.randn(
        found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    wanted = [start, scale, *net.parameters()]
    gradients = torch.autograd.grad((weights * found).sum(), wanted)
    assert (solution.stats.backward > 0).all()

    total = torch.zeros((), dtype=torch.float64)
    for row in range(3):
        mine = times if given.ndim == 1 else given[row]
        for column, time in enumerate(mine.tolist()):
            y = solve(
                net,
                start[row : row + 1],
                (0.0, time),
                tolerance=1e-11,
                gradient="backprop",
                context=(scale[row : row + 1],),
            ).state
            total = total + (weights[row, column] * y[0]).sum()
    for one, two in zip(gradients, torch.autograd.grad(total, wanted), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_what_was_not_reached_is_not_a_number() -> None:
    def explode(t: Tensor, y: Tensor) -> Tensor:
        return y.square()

    start = torch.tensor([[0.5], [2.0]], dtype=torch.float64, requires_grad=True)
    times = torch.tensor([0.1, 0.4, 0.9], dtype=torch.float64)
    found, solution = solve_at(explode, start, times, stepping="individual")
    assert solution.status[0] == Status.DONE and solution.status[1] != Status.DONE
    torch.testing.assert_close(found[0, :, 0].detach(), 1.0 / (2.0 - times), rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1, :2, 0].detach(), 1.0 / (0.5 - times[:2]), rtol=1e-4, atol=0)
    assert found[1, 2].isnan()
    (gradient,) = torch.autograd.grad(found[:, 0].sum(), start)
    expected = (1.0 / (1.0 - times[0] * start.detach())).square()
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=0)


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="must lie in the interval"):
        solve_at(pendulum, STARTS, torch.tensor([0.5, 1.5]))
    with pytest.raises(ValueError, match="times must have shape"):
        solve_at(pendulum, STARTS, torch.zeros(2, 4))
