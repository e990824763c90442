"""Nested rules against closed forms, and integrals along paths against solutions that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.polynomial import legendre
from torch import Tensor

from infocnf.ode import solve_at, solve_path
from infocnf.ode.quadrature import NODES, Integral, integrate_along, rule


def clock(samples: int) -> object:
    """A path whose state is the time."""
    return solve_path(lambda t, y: torch.ones_like(y), torch.zeros(samples, 1), tolerance=1e-3)


@pytest.mark.parametrize("count", NODES)
def test_rules_are_nested_and_exact_up_to_their_degree_and_no_further(count: int) -> None:
    nodes, weights = rule(count)
    degree = 1 if count == 1 else (3 * count + 1) // 2
    values = legendre.legvander(nodes, degree + 1)  # all but the first integrate to zero
    np.testing.assert_allclose(weights @ values[:, 1 : degree + 1], 0.0, atol=1e-14)
    assert weights.sum() == pytest.approx(2.0, abs=1e-14) and (weights > 0).all()
    assert abs(weights @ values[:, degree + 1]) > 1e-6
    for fewer in NODES[: NODES.index(count)]:
        np.testing.assert_array_equal(rule(fewer)[0], nodes[:fewer])


@pytest.mark.parametrize("target", [1e-3, 1e-6, 1e-10])
def test_every_sample_takes_the_nodes_that_its_own_integrand_needs(target: float) -> None:
    frequency = torch.tensor([0.5, 3.0, 20.0, 90.0, 400.0])

    def wave(rows: np.ndarray, times: np.ndarray, y: Tensor) -> Tensor:
        at = frequency[rows]
        return torch.stack([torch.cos(at * y[:, 0]), torch.full_like(at, 2.0)], 1)

    found = integrate_along(clock(5), wave, np.full(5, target), share=100)  # type: ignore[arg-type]
    true = (found.sums()[:, 0] - torch.sin(frequency) / frequency).abs()
    assert (true <= found.error.clamp(min=1e-13)).all() and (found.error <= target).all()
    torch.testing.assert_close(found.sums()[:, 1], torch.full((5,), 2.0))
    assert (found.counts.diff() >= 0).all() and found.counts[0] == 7
    assert found.counts[-1] > 20 * found.counts[0]


def test_a_kink_that_is_known_costs_no_halving() -> None:
    looked = 0

    def bent(rows: np.ndarray, times: np.ndarray, y: Tensor) -> Tensor:
        nonlocal looked
        looked += len(rows)
        return (y - 0.3).abs()

    target = np.full(1, 1e-9)
    known, unknown = (
        integrate_along(clock(1), bent, target, breaks=breaks)  # type: ignore[arg-type]
        for breaks in ((0.3,), ())
    )
    exact = (0.3**2 + 0.7**2) / 2.0
    assert float(known.sums()) == pytest.approx(exact, abs=1e-12)
    assert float(known.counts) == 14 and float(unknown.counts) > 5 * 14
    both = [found.counts + found.discarded for found in (known, unknown)]
    assert both[0] == 14 + 31 and sum(both) == looked  # what is looked at in vain is counted, too


def test_a_quadrature_need_not_be_better_than_an_integrand_that_is_estimated() -> None:
    def estimate(rows: np.ndarray, times: np.ndarray, y: Tensor) -> Tensor:
        values = 100.0 * torch.exp(-40.0 * y[:, 0])
        return torch.stack([values, torch.tensor([0.0, 0.1, 30.0])[rows]], 1)

    target = np.full(3, 1e-9)
    found = integrate_along(clock(3), estimate, target, deviation=1)  # type: ignore[arg-type]
    true = (found.sums()[:, 0] - 2.5 * (1.0 - np.exp(-40.0))).abs()
    spread = found.sums(power=2)[:, 1].sqrt()
    assert found.counts[0] > found.counts[1] > found.counts[2]
    assert (true <= found.error).all() and (found.error[1:] <= spread[1:]).all()


def test_an_integral_that_cannot_be_resolved_says_so() -> None:
    def jump(rows: np.ndarray, times: np.ndarray, y: Tensor) -> Tensor:
        return (y > 1.0 / 3.0).to(y)

    found = integrate_along(clock(1), jump, np.full(1, 1e-9))  # type: ignore[arg-type]
    assert 1e-9 < float(found.error) and abs(float(found.sums()) - 2.0 / 3.0) <= float(found.error)


@pytest.mark.parametrize("stepping", ["shared", "individual"])
@pytest.mark.parametrize("end", [1.5, -1.0])
def test_integrals_along_a_path_are_those_of_the_solution(stepping: str, end: float) -> None:
    rates = torch.tensor([[1.0], [0.3], [2.0]])
    path = solve_path(
        lambda t, y, rate: -rate * y,
        torch.ones(3, 1),
        (0.0, end),
        tolerance=1e-10,
        context=(rates,),
        options=None,
    )
    found = integrate_along(path, lambda rows, times, y: y, np.full(3, 1e-9))
    exact = (1.0 - torch.exp(-rates * end)) / rates
    torch.testing.assert_close(found.sums(), exact, atol=1e-8, rtol=0.0)


def test_weights_may_be_squared_for_variances() -> None:
    values = torch.tensor([[1.0], [2.0], [3.0]])
    found = Integral(
        np.array([0, 0, 1]), np.zeros(3), np.array([0.5, 0.25, 2.0]), values, torch.zeros(2)
    )
    assert found.sums().flatten().tolist() == [1.0, 6.0]
    assert found.sums(power=2).flatten().tolist() == [0.5, 36.0]


def swing(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack([y[:, 1], -torch.sin(y[:, 0]) * 4.0], 1)


def test_a_path_has_the_states_of_a_dense_solve() -> None:
    start, times = torch.tensor([[0.5, 0.0], [2.0, 1.0]]), torch.tensor([0.0, 0.3, 0.71, 1.0])
    how = {"tolerance": 1e-6, "stepping": "individual"}
    states, _ = solve_at(swing, start, times, **how)  # type: ignore[arg-type]
    from infocnf.ode import SolverOptions

    path = solve_path(swing, start, tolerance=1e-6, options=SolverOptions(stepping="individual"))
    rows, when = np.repeat([1, 0], 4), np.tile(times.numpy(), 2)
    torch.testing.assert_close(path.states(rows, when), states[[1, 0]].flatten(0, 1))


def test_half_the_steps_of_a_mesh_leave_a_thirtieth_of_the_error() -> None:
    from infocnf.ode import SolverOptions

    start = torch.tensor([[0.5, 0.0], [2.0, 1.0], [3.0, 0.1]])
    options = SolverOptions(stepping="individual")
    path = solve_path(swing, start, (0.0, 3.0), tolerance=1e-4, options=options)
    again, finer = (
        solve_path(swing, start, (0.0, 3.0), mesh=np.repeat(path.mesh() / parts, parts, axis=1))
        for parts in (1, 2)
    )
    exact = solve_path(swing, start, (0.0, 3.0), tolerance=1e-12).solution.state
    torch.testing.assert_close(again.solution.state, path.solution.state, atol=1e-13, rtol=0.0)
    errors = [(p.solution.state - exact).norm(dim=1) for p in (path, finer)]
    assert (errors[0] > 15.0 * errors[1]).all()
    assert (finer.solution.stats.rejected == 0).all()
    assert finer.solution.stats.accepted.tolist() == (2 * path.solution.stats.accepted).tolist()
