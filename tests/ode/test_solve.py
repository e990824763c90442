"""The solver against closed forms, SciPy and torchdiffeq, and its account against an independent
count.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor
from torchdiffeq import odeint

from infocnf.ode import TABLEAUS, SolveError, Status, integrate, solve
from tests.ode.problems import Counted, Swirl, rotation, stiffness

ADAPTIVE = [name for name, table in TABLEAUS.items() if table.adaptive]
FIXED = [name for name, table in TABLEAUS.items() if not table.adaptive]
STEPPINGS = ["shared", "individual"]


@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_converge_with_the_order_of_the_method(method: str, stepping: str) -> None:
    start, end = torch.tensor([[1.0, 0.0]]), torch.tensor([[math.cos(1.0), math.sin(1.0)]])
    sizes = [16, 32, 64]
    errors = [
        (
            solve(rotation, start, (0.0, 1.0), method=method, steps=n, stepping=stepping).state
            - end
        ).norm()
        for n in sizes
    ]

    slopes = [math.log2(a / b) for a, b in pairwise(errors)]
    assert slopes == pytest.approx([TABLEAUS[method].order] * 2, abs=0.15)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_one_step_of_an_adaptive_method_has_the_order_of_the_method(method: str) -> None:
    start = torch.tensor([[1.0, 0.0]])
    errors = []
    for h in (0.4, 0.2, 0.1):
        solution = solve(rotation, start, (0.0, h), method=method, tolerance=1e9, first_step=h)
        assert solution.stats.accepted == 1
        errors.append((solution.state - torch.tensor([[math.cos(h), math.sin(h)]])).norm())

    slopes = [math.log2(a / b) for a, b in pairwise(errors)]
    assert min(slopes) > TABLEAUS[method].order + 0.8  # the error of one step is of one order more


@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_error_follows_the_tolerance(method: str, stepping: str) -> None:
    field, start = Swirl(), torch.randn(6, 3)
    exact = reference(field, start)

    with torch.no_grad():
        errors = [
            (
                solve(
                    field, start, (0.0, 1.0), method=method, tolerance=tol, stepping=stepping
                ).state
                - exact
            )
            .abs()
            .max()
            for tol in (1e-3, 1e-5, 1e-7)
        ]
    assert errors[0] > errors[1] > errors[2]
    assert all(error < 20 * tol for error, tol in zip(errors, (1e-3, 1e-5, 1e-7), strict=True))


def reference(field: Swirl, start: Tensor, interval: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """SciPy's eighth-order solution at 1e-12."""

    def flat(t: float, z: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return (
                field(torch.tensor(t), torch.from_numpy(z).reshape(start.shape)).flatten().numpy()
            )

    solution = solve_ivp(
        flat, interval, start.flatten().numpy(), method="DOP853", rtol=1e-12, atol=1e-12
    )
    return torch.from_numpy(solution.y[:, -1]).reshape(start.shape)


@pytest.mark.parametrize("stepping", STEPPINGS)
def test_it_agrees_with_scipy_and_torchdiffeq(stepping: str) -> None:
    field, start = Swirl(strength=4.0), torch.randn(5, 3)
    with torch.no_grad():
        ours = solve(field, start, (0.0, 2.0), tolerance=1e-9, stepping=stepping).state
        theirs = odeint(field, start, torch.tensor([0.0, 2.0]), rtol=1e-10, atol=1e-10)[-1]

    torch.testing.assert_close(ours, reference(field, start, (0.0, 2.0)), rtol=0, atol=1e-7)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_backward_in_time_undoes_forward(method: str, stepping: str) -> None:
    field, start = Swirl(), torch.randn(4, 3)
    with torch.no_grad():
        there = solve(field, start, (0.3, 1.1), method=method, tolerance=1e-7, stepping=stepping)
        back = solve(
            field, there.state, (1.1, 0.3), method=method, tolerance=1e-7, stepping=stepping
        )

    torch.testing.assert_close(back.state, start, rtol=0, atol=1e-5)
    assert (back.time == 0.3).all() and (there.time == 1.1).all()


def test_an_interval_of_no_length_returns_the_state_and_costs_nothing() -> None:
    start = torch.randn(3, 2, requires_grad=True)
    solution = solve(rotation, start, (0.5, 0.5))
    (slope,) = torch.autograd.grad(solution.state.sum(), start)

    assert torch.equal(solution.state, start) and solution.stats.forward == 0
    assert torch.equal(slope, torch.ones_like(start))


@pytest.mark.parametrize("stepping", STEPPINGS)
def test_an_empty_batch_is_solved(stepping: str) -> None:
    solution = solve(rotation, torch.empty(0, 2), (0.0, 1.0), stepping=stepping)
    assert solution.state.shape == (0, 2) and solution.done.all()


@pytest.mark.parametrize("stepping", STEPPINGS)
def test_states_of_several_tensors_of_any_shape(stepping: str) -> None:
    def field(t: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
        image, vector, number = state
        return -image, 2.0 * vector, torch.ones_like(number)

    start = (torch.randn(3, 2, 4, 4), torch.randn(3, 5), torch.zeros(3))
    image, vector, number = solve(field, start, (0.0, 1.0), tolerance=1e-9, stepping=stepping).state

    torch.testing.assert_close(image, start[0] * math.exp(-1.0))
    torch.testing.assert_close(vector, start[1] * math.exp(2.0))
    torch.testing.assert_close(number, torch.ones(3))


@pytest.mark.parametrize("stepping", STEPPINGS)
def test_auxiliary_are_integrated_but_do_not_control_the_step(stepping: str) -> None:
    def field(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        z, _ = state
        return rotation(t, z), 10.0 * torch.sin(40.0 * z[:, 0])

    start = torch.randn(3, 2)
    alone = solve(rotation, start, (0.0, 1.0), stepping=stepping)
    rides = solve(field, (start, torch.zeros(3)), (0.0, 1.0), stepping=stepping, auxiliary=1)
    counts = solve(field, (start, torch.zeros(3)), (0.0, 1.0), stepping=stepping)

    assert torch.equal(rides.state[0], alone.state)
    assert torch.equal(rides.stats.forward, alone.stats.forward)
    assert (rides.state[1] != 0).all()
    assert (counts.stats.forward > rides.stats.forward).all()


def test_each_sample_is_solved_to_its_own_tolerance() -> None:
    field, start = Swirl(), torch.randn(1, 3).expand(3, 3).contiguous()
    tolerance = torch.tensor([1e-2, 1e-5, 1e-8])
    with torch.no_grad():
        solution = solve(field, start, (0.0, 1.0), tolerance=tolerance, stepping="individual")
        exact = reference(field, start[:1])

    errors = (solution.state - exact).abs().amax(1)
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-7
    assert solution.stats.forward[0] < solution.stats.forward[1] < solution.stats.forward[2]


@pytest.mark.parametrize("method", ADAPTIVE)
def test_a_samples_answer_and_cost_do_not_depend_on_its_batch_or_order(method: str) -> None:
    rates = torch.tensor([1.0, 300.0, 3.0, 40.0, 0.0, 110.0])
    start = torch.stack([torch.linspace(-2.0, 2.0, 6), rates], -1)
    tolerance = torch.tensor([1e-2, 1e-4, 1e-6, 1e-3, 1e-5, 1e-3])
    options = {"stepping": "individual", "method": method, "max_steps": 100_000}
    whole = solve(stiffness, start, (0.0, 1.0), tolerance=tolerance, **options)

    for members in ([0], [1], [5, 3, 1], [4, 2, 0, 1, 5, 3]):
        part = solve(stiffness, start[members], (0.0, 1.0), tolerance=tolerance[members], **options)
        torch.testing.assert_close(part.state, whole.state[members], rtol=0, atol=1e-6)
        for count in ("forward", "accepted", "rejected"):
            assert torch.equal(getattr(part.stats, count), getattr(whole.stats, count)[members])
    assert whole.stats.forward.max() > 3 * whole.stats.forward.min()


@pytest.mark.parametrize("method", list(TABLEAUS))
@pytest.mark.parametrize("stepping", STEPPINGS)
def test_the_account_equals_an_independent_count_of_each_samples_evaluations(
    method: str, stepping: str
) -> None:
    rates = torch.tensor([1.0, 200.0, 3.0, 40.0])
    start = torch.stack([torch.linspace(-2.0, 2.0, 4), rates], -1)
    counted = Counted(stiffness, 4)
    steps = None if TABLEAUS[method].adaptive else 50

    solution = solve(
        counted,
        start,
        (0.0, 1.0),
        method=method,
        stepping=stepping,
        steps=steps,
        tolerance=1e-3,
        context=(torch.arange(4.0),),
    )
    assert torch.equal(counted.calls, solution.stats.forward.expand(4))
    assert solution.stats.rejected.sum() > 0 or steps


def test_individual_steps_cost_what_the_samples_need_and_shared_steps_what_the_worst_needs() -> (
    None
):
    start = torch.tensor([[2.0, 1.0]] * 19 + [[2.0, 300.0]])
    shared = solve(stiffness, start, (0.0, 1.0), stepping="shared")
    individual = solve(stiffness, start, (0.0, 1.0), stepping="individual")

    assert individual.stats.forward.sum() < 0.3 * 20 * shared.stats.forward


def test_a_warm_start_saves_the_estimate_and_the_growth_of_the_first_step() -> None:
    field, start = Swirl(), torch.randn(8, 3)
    with torch.no_grad():
        first = solve(field, start, (0.0, 1.0))
        second = solve(field, start, (0.0, 1.0), first_step=first.first_step)
        third = solve(field, start, (0.0, 1.0), first_step=second.first_step)

    assert third.stats.forward < first.stats.forward
    torch.testing.assert_close(third.state, first.state, rtol=0, atol=1e-4)


def test_the_field_is_not_evaluated_outside_the_interval() -> None:
    times = []

    def field(t: Tensor, z: Tensor) -> Tensor:
        times.append(t.max().item())
        return rotation(t, z)

    for stepping in STEPPINGS:
        solve(field, torch.randn(3, 2), (0.0, 1.0), stepping=stepping)
    assert max(times) == 1.0 and min(times) == 0.0


def blowing_up(t: Tensor, z: Tensor) -> Tensor:
    """z' = z^2 leaves every bound at t = 1 / z(0)."""
    return z.square()


def test_a_blow_up_is_reported_and_the_healthy_samples_are_solved() -> None:
    start = torch.tensor([[0.5], [2.0], [-1.0]])
    solution = solve(blowing_up, start, (0.0, 1.0), stepping="individual", tolerance=1e-8)

    assert solution.status.tolist() == [Status.DONE, Status.STEP_TOO_SMALL, Status.DONE]
    torch.testing.assert_close(solution.state[[0, 2]], torch.tensor([[1.0], [-0.5]]))
    assert solution.state[1].isnan().all()
    assert solution.time[1].item() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("stepping", STEPPINGS)
def test_nan_from_the_field_is_reported(stepping: str) -> None:
    def field(t: Tensor, z: Tensor) -> Tensor:
        return torch.where(z > 1.0, torch.nan, torch.ones_like(z))

    start = torch.tensor([[0.5], [-3.0], [5.0]])
    solution = solve(field, start, (0.0, 1.0), stepping=stepping)

    if stepping == "individual":
        assert solution.status.tolist() == [Status.NOT_FINITE, Status.DONE, Status.NOT_FINITE]
        torch.testing.assert_close(solution.state[1], torch.tensor([-2.0]))
        assert solution.stats.forward[2] == 1  # the start itself was broken: nothing was tried
    else:
        assert solution.status == Status.NOT_FINITE and solution.state.isnan().all()


@pytest.mark.parametrize("method", FIXED)
def test_nan_ends_a_solve_of_fixed_steps(method: str) -> None:
    start = torch.tensor([[torch.nan], [1.0]])
    options = {"method": method, "steps": 4, "stepping": "individual"}
    solution = solve(lambda t, z: -z, start, (0.0, 1.0), **options)

    assert solution.status.tolist() == [Status.NOT_FINITE, Status.DONE]
    assert solution.stats.accepted.tolist() == [0, 4]


@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_an_auxiliary_integral_that_is_not_finite_is_reported(method: str, stepping: str) -> None:
    def field(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return -state[0], torch.log(state[0] - 0.5)[:, 0]

    start = (torch.tensor([[1.0], [10.0]]), torch.zeros(2))
    steps = None if method == "dopri5" else 8
    options = {"method": method, "steps": steps, "stepping": stepping, "auxiliary": 1}
    solution = solve(field, start, (0.0, 1.0), **options)
    expected = [Status.NOT_FINITE, Status.DONE] if stepping == "individual" else Status.NOT_FINITE
    assert solution.status.tolist() == expected


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_large_finite_numbers_are_solved(method: str) -> None:
    start = torch.full((2, 1), 1e20, dtype=torch.float32)
    solution = solve(
        lambda t, z: -z, start, (0.0, 1.0), method=method, steps={"rk4": 20}.get(method)
    )
    assert solution.done.all()
    torch.testing.assert_close(solution.state, start * math.exp(-1.0), rtol=1e-4, atol=0)


def test_empty_parts_of_a_state_are_carried_along() -> None:
    def field(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return state[0], torch.ones_like(state[1])

    for stepping in STEPPINGS:
        solution = solve(field, (torch.zeros(2, 0), torch.zeros(2)), (0.0, 1.0), stepping=stepping)
        torch.testing.assert_close(solution.state[1], torch.ones(2))


def test_a_stiff_field_ends_within_its_budget() -> None:
    start = torch.tensor([[2.0, 1e7], [2.0, 1.0]])
    began = time.monotonic()
    solution = solve(stiffness, start, (0.0, 1.0), stepping="individual", max_steps=200)

    assert solution.status.tolist() == [Status.TOO_MANY_STEPS, Status.DONE]
    assert (solution.stats.accepted + solution.stats.rejected)[0] == 200
    assert time.monotonic() - began < 60  # a hang, not a speed


def test_a_failure_raises_an_error_that_names_place_time_and_remedy() -> None:
    solution = solve(blowing_up, torch.tensor([[2.0], [0.1]]), (0.0, 1.0), stepping="individual")
    with pytest.raises(
        SolveError, match=r"block 3 failed for 1 of 2 samples \(rows \d\), at time 0.5.*loosen"
    ) as caught:
        solution.check("block 3")
    assert caught.value.solution is solution


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "dopri"}, "got 'dopri'"),
        ({"stepping": "alone"}, "got 'alone'"),
        ({"gradient": "none"}, "got 'none'"),
        ({"tolerance": 0.0}, "got 0.0"),
        ({"tolerance": float("nan")}, "got nan"),
        ({"tolerance": torch.tensor([1e-5, -1.0]), "stepping": "individual"}, "got -1.0"),
        ({"tolerance": torch.tensor([1e-5, 1e-5])}, "under shared stepping, got"),
        ({"tolerance": torch.tensor([1e-5] * 3), "stepping": "individual"}, r"\(2,\), got \(3,\)"),
        ({"steps": 10}, "dopri5 chooses its own steps"),
        ({"method": "rk4"}, "rk4 needs the number of steps"),
        ({"method": "rk4", "steps": 0}, "got steps=0"),
        ({"auxiliary": 1}, "cannot have 1 auxiliary integrals"),
        ({"first_step": -0.1}, "got -0.1"),
        ({"method": "euler", "steps": 2.5}, "got steps=2.5"),
        ({"interval": (0.0, float("inf"))}, "must be finite"),
        ({"context": (torch.ones(1, 1),), "stepping": "individual"}, "must have 2 rows"),
        ({"field": lambda t, z: z.float()}, "returned .* float32 for a state of .* float64"),
        ({"field": lambda t, z: z.relu_(), "gradient": "backprop"}, "in place"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments = {"field": rotation, "interval": (0.0, 1.0), **change}
        solve(state=torch.randn(2, 2), **arguments)  # type: ignore[arg-type]


def test_bad_states_and_slopes_are_named() -> None:
    with pytest.raises(ValueError, match=r"floating-point type, got torch\.int64"):
        solve(rotation, torch.ones(2, 2, dtype=torch.int64), (0.0, 1.0))
    with pytest.raises(ValueError, match="differ in batch size"):
        pair = (torch.ones(2, 2), torch.ones(3))
        solve(lambda t, s: s, pair, (0.0, 1.0), stepping="individual")
    with pytest.raises(
        ValueError, match=r"returned \(2,\) float64 for a state of \(2, 2\) float64"
    ):
        solve(lambda t, z: z[:, 0], torch.ones(2, 2), (0.0, 1.0))


def test_single_precision_works_throughout() -> None:
    start = torch.randn(4, 3, dtype=torch.float32)
    field = Swirl().float()
    for stepping in STEPPINGS:
        solution = solve(field, start, (0.0, 1.0), stepping=stepping)
        assert solution.state.dtype == torch.float32 and solution.done.all()


@pytest.mark.parametrize("stepping", ["shared", "individual"])
def test_what_a_field_keeps_of_its_input_stays_as_it_was(stepping: str) -> None:
    kept = []

    def field(t: Tensor, y: Tensor) -> Tensor:
        kept.append((t, t.clone(), y, y.clone()))
        return -y

    solve(field, torch.randn(3, 2), (0.0, 1.0), stepping=stepping)
    assert len(kept) > 7
    assert all(torch.equal(t, u) and torch.equal(y, z) for t, u, y, z in kept)


@pytest.mark.parametrize("stepping", ["shared", "individual"])
def test_parts_of_different_precision_keep_it(stepping: str) -> None:
    def field(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return -state[0], state[1] * 2.0

    start = (torch.ones(3, 2, dtype=torch.float32), torch.ones(3, dtype=torch.float64))
    low, high = solve(field, start, (0.0, 1.0), tolerance=1e-6, stepping=stepping).state
    assert low.dtype == torch.float32 and high.dtype == torch.float64
    torch.testing.assert_close(low, torch.full_like(low, np.exp(-1.0)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(high, torch.full_like(high, np.exp(2.0)), rtol=1e-5, atol=1e-5)


def test_many_samples_are_solved_in_shares_without_any_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field, start = Swirl(), torch.randn(50, 3)
    tolerance = torch.logspace(-3, -7, 50)
    options = {"tolerance": tolerance, "stepping": "individual", "first_step": 0.01 + tolerance}
    with torch.no_grad():
        whole = solve(field, start, (0.0, 1.0), **options)
        monkeypatch.setattr(integrate, "SHARE", 3 * 7)
        sizes = []
        shared = solve(
            lambda t, y: sizes.append(len(y)) or field(t, y), start, (0.0, 1.0), **options
        )
    assert max(sizes) == 7
    torch.testing.assert_close(whole.state, shared.state, rtol=0, atol=1e-14)
    for name in ("forward", "accepted", "rejected"):
        assert torch.equal(getattr(whole.stats, name), getattr(shared.stats, name))
    assert torch.equal(whole.status, shared.status) and whole.first_step == shared.first_step


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": "1e-4"}, "tolerance must be a number, got '1e-4'"),
        ({"max_steps": -1}, "max_steps must be a whole number, 1 or more, got -1"),
        ({"max_steps": 2.5}, "max_steps must be a whole number"),
        ({"keep": -1}, "keep must be a whole number, 0 or more"),
    ],
)
def test_numbers_that_are_none_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(lambda t, y: -y, torch.ones(1, 1), (0.0, 1.0), **options)
