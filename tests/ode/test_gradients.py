"""The three gradients against finite differences, each other, and a measurement of memory."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from benchmarks.peers.measure import allocated
from infocnf.ode import solve
from tests.ode.problems import Counted, Swirl, stiffness

GRADIENTS = ["backprop", "checkpoint", "adjoint"]
STEPPINGS = ["shared", "individual"]
ACCURACY = {"backprop": 1e-6, "checkpoint": 1e-6, "adjoint": 1e-4}


class Pair(nn.Module):
    """A field of two tensors with a context: slopes depend on state, weights, time and context."""

    def __init__(self) -> None:
        super().__init__()
        self.swirl = Swirl()

    def forward(
        self, t: Tensor, state: tuple[Tensor, Tensor], push: Tensor
    ) -> tuple[Tensor, Tensor]:
        z, _ = state
        velocity = self.swirl(t, z) + push
        return velocity, velocity.square().sum(1)


def loss_of(solution_state: tuple[Tensor, Tensor]) -> Tensor:
    z, energy = solution_state
    return z.sin().sum() + (energy * torch.linspace(0.5, 1.5, len(energy))).sum()


@pytest.mark.parametrize("auxiliary", [0, 1])
@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_equal_finite_differences(gradient: str, stepping: str, auxiliary: int) -> None:
    field, start, push = Pair(), torch.randn(3, 3), 0.3 * torch.randn(3, 3)
    run = partial(
        solve,
        field,
        interval=(0.0, 1.0),
        tolerance=1e-10,
        stepping=stepping,
        gradient=gradient,
        auxiliary=auxiliary,
    )

    x, c = start.clone().requires_grad_(), push.clone().requires_grad_()
    loss = loss_of(run((x, torch.zeros(3)), context=(c,)).state)
    sources = [x, c, *field.parameters()]
    found = torch.autograd.grad(loss, sources)

    with torch.no_grad():
        for source, slope in zip(sources, found, strict=True):
            direction = torch.randn_like(source)
            values = []
            for sign in (1, -1):
                source += sign * 1e-5 * direction
                values.append(loss_of(run((x, torch.zeros(3)), context=(c,)).state).item())
                source -= sign * 1e-5 * direction
            expected = (values[0] - values[1]) / 2e-5
            assert (slope * direction).sum().item() == pytest.approx(
                expected, abs=ACCURACY[gradient], rel=ACCURACY[gradient]
            )


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3", "heun", "rk4", "midpoint", "euler"])
@pytest.mark.parametrize("stepping", STEPPINGS)
def test_checkpoint_gives_the_gradient_of_backprop_for_every_method(
    method: str, stepping: str
) -> None:
    field, start = Swirl(strength=5.0), torch.randn(4, 3)
    steps = 12 if method in ("rk4", "midpoint", "euler") else None
    found = {}
    for gradient in ("backprop", "checkpoint"):
        x = start.clone().requires_grad_()
        options = {"method": method, "stepping": stepping, "steps": steps, "gradient": gradient}
        solution = solve(field, x, (0.0, 1.0), tolerance=1e-4, **options)
        found[gradient] = torch.autograd.grad(
            solution.state.square().sum(), [x, *field.parameters()]
        )

    torch.testing.assert_close(found["checkpoint"], found["backprop"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_every_parameter_receives_a_gradient(gradient: str, stepping: str) -> None:
    field = Swirl()
    solve(
        field, torch.randn(4, 3), (0.0, 1.0), gradient=gradient, stepping=stepping
    ).state.sum().backward()
    for parameter in field.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("keep", [0, 2**28])
@pytest.mark.parametrize("stepping", STEPPINGS)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_account_of_the_backward_pass_equals_an_independent_count(
    gradient: str, stepping: str, keep: int
) -> None:
    rates = torch.tensor([1.0, 60.0, 3.0, 20.0])
    start = torch.stack([torch.linspace(-2.0, 2.0, 4), rates], -1).requires_grad_()
    counted = Counted(stiffness, 4)
    numbers = torch.arange(4.0)
    solution = solve(
        counted,
        start,
        (0.0, 1.0),
        gradient=gradient,
        stepping=stepping,
        context=(numbers,),
        tolerance=1e-4,
        keep=keep,
    )
    forward = counted.calls.clone()
    assert torch.equal(forward, solution.stats.forward.expand(4))
    assert (solution.stats.backward == 0).all()

    solution.state.sum().backward()
    assert (solution.stats.evaluations == solution.stats.forward + solution.stats.backward).all()
    if gradient == "checkpoint":
        assert torch.equal(solution.stats.backward, 6 * solution.stats.accepted)
    if gradient == "checkpoint" and stepping == "shared" and keep:
        assert torch.equal(counted.calls, forward)  # pulled back from the graphs that were kept
    else:
        assert torch.equal(counted.calls - forward, solution.stats.backward.expand(4))


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3", "heun", "euler", "rk4"])
def test_gradients_are_the_same_however_many_graphs_are_kept(method: str) -> None:
    field, start = Swirl(), torch.randn(4, 3)
    steps = {"steps": 7} if method in ("euler", "rk4") else {}
    found, again = [], []
    calls = 0

    def pushed(t: Tensor, z: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return field(t, z) * w.unsqueeze(-1)

    for keep in (0, 3000, 20_000, 2**28):
        x, weight = start.clone().requires_grad_(), torch.linspace(0.5, 2.0, 4).requires_grad_()
        solution = solve(
            pushed,
            x,
            (0.0, 1.0),
            context=(weight,),
            parameters=field.parameters(),
            method=method,
            keep=keep,
            tolerance=1e-4,
            **steps,
        )
        wanted = [x, weight, *field.parameters()]
        loss, before = solution.state.square().sum(), calls
        found.append(torch.autograd.grad(loss, wanted, retain_graph=True))
        again.append(calls - before)
        twice = torch.autograd.grad(loss, wanted)  # kept graphs are used up: recomputed
        assert all(torch.equal(a, b) for a, b in zip(found[-1], twice, strict=True))
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))
    # the more is kept, the less is recomputed
    assert again == sorted(again, reverse=True) and again[0] > again[1] > again[3] == 0, again


class Wide(nn.Module):
    """A field whose graph is much larger than its state."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(features, width), nn.Linear(width, features)

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return 3.0 * self.down(torch.tanh(self.up(z)))


@pytest.mark.parametrize("stepping", STEPPINGS)
def test_checkpoint_keeps_one_state_per_stage_of_accepted_steps_and_no_graph(stepping: str) -> None:
    field, start = Wide(8, 256), torch.randn(500, 8)
    state_bytes = start.numel() * start.element_size()

    def forward(gradient: str, keep: int = 0) -> tuple[int, int]:
        solutions = []
        options = {"gradient": gradient, "stepping": stepping, "keep": keep}
        held, _ = allocated(
            lambda: solutions.append(solve(field, start, (0.0, 1.0), tolerance=1e-6, **options))
        )
        stats = solutions[0].stats
        return held, int(stats.accepted.sum() if stepping == "individual" else stats.accepted)

    kept, steps = forward("checkpoint")
    steps = steps / 500 if stepping == "individual" else steps
    graph, _ = forward("backprop")
    slack = 0.35 * steps if stepping == "individual" else 0.1  # indices, times, steps per sample
    states = 6 * steps  # the one before each step and the increments of its first five stages
    # the first state is the input itself
    assert states - 1.01 <= kept / state_bytes <= states + 1 + slack
    assert graph > 10 * kept
    if stepping == "shared":  # what may be kept besides is
        more, _ = forward("checkpoint", keep=graph // 3)
        assert 0.5 * (graph // 3) <= more - kept <= graph // 3


def test_adjoint_memory_does_not_grow_with_the_steps() -> None:
    field, start = Wide(8, 64), torch.randn(100, 8)

    def held(tolerance: float) -> tuple[int, int]:
        solutions = []
        options = {"gradient": "adjoint", "tolerance": tolerance}
        kept, _ = allocated(lambda: solutions.append(solve(field, start, (0.0, 1.0), **options)))
        return kept, int(solutions[0].stats.accepted)

    (loose, few), (tight, many) = held(1e-2), held(1e-10)
    assert many > 3 * few and tight == loose


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_memory_is_freed_with_the_solution_and_not_by_the_garbage_collector(gradient: str) -> None:
    field, start = Swirl(), torch.randn(4, 3)
    gc.disable()
    try:
        held, _ = allocated(
            lambda: solve(field, start, (0.0, 1.0), gradient=gradient).state.sum().item()
        )
    finally:
        gc.enable()
    assert held == 0


def test_backprop_can_be_differentiated_twice() -> None:
    x = torch.tensor([[0.7]], requires_grad=True)
    z = solve(lambda t, z: z.square(), x, (0.0, 0.5), tolerance=1e-10, gradient="backprop").state
    (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)

    # z(1/2) = x / (1 - x/2): slope (1 - x/2)^-2, curvature (1 - x/2)^-3
    assert first.item() == pytest.approx((1 - 0.35) ** -2, abs=1e-8)
    assert second.item() == pytest.approx((1 - 0.35) ** -3, abs=1e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_healthy_samples_keep_their_gradients_beside_one_that_overflows(gradient: str) -> None:
    scale = nn.Parameter(torch.ones(()))
    start = torch.tensor([[0.5], [2.0], [-1.0]], requires_grad=True)

    def field(t: Tensor, z: Tensor) -> Tensor:
        return scale * z.square() * torch.exp(1e3 * torch.relu(z - 3.0))  # overflows from 3.7 on

    options = {
        "gradient": gradient,
        "stepping": "individual",
        "parameters": [scale],
        "tolerance": 1e-9,
    }
    solution = solve(field, start, (0.0, 1.0), **options)
    assert solution.done.tolist() == [True, False, True]

    slope, rate = torch.autograd.grad(solution.state.sum(), [start, scale])  # the failed one, too
    # z(1) = x / (1 - s x): dz/dx = (1 - s x)^-2, dz/ds = x^2 (1 - s x)^-2
    expected = torch.tensor([[4.0], [0.0], [0.25]])
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-5)
    assert rate.item() == pytest.approx(0.25 * 4 + 0.25, abs=1e-5)


def test_a_function_that_hides_weights_is_refused() -> None:
    weight = nn.Parameter(torch.ones(()))
    start = torch.randn(2, 2)
    with pytest.raises(ValueError, match="pass them as parameters="):
        solve(lambda t, z: weight * z, start, (0.0, 1.0))

    named = solve(lambda t, z: weight * z, start, (0.0, 1.0), parameters=[weight])
    free = solve(lambda t, z: weight * z, start, (0.0, 1.0), gradient="backprop")
    pair = [torch.autograd.grad(s.state.sum(), weight)[0] for s in (named, free)]
    torch.testing.assert_close(*pair)


def test_a_module_that_keeps_the_output_of_another_network_is_refused() -> None:
    class Conditioned(Swirl):
        condition: Tensor

        def forward(self, t: Tensor, z: Tensor) -> Tensor:
            return super().forward(t, z) + self.condition

    field, encoder, x = Conditioned(), nn.Linear(3, 3), torch.randn(2, 3)
    field.condition = encoder(x)
    with pytest.raises(ValueError, match="neither its parameters nor its context"):
        solve(field, x, (0.0, 1.0))

    named = [*field.parameters(), field.condition]
    found = []
    for options in ({"parameters": named}, {"gradient": "backprop"}):
        state = solve(field, x, (0.0, 1.0), **options).state
        found.append(torch.autograd.grad(state.sum(), encoder.weight, retain_graph=True)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_broken_input_does_not_spoil_the_gradients_of_the_others(gradient: str) -> None:
    field, start = Swirl(), torch.randn(3, 3)
    start[1] = torch.nan
    solution = solve(field, start, (0.0, 1.0), stepping="individual", gradient=gradient)
    found = torch.autograd.grad(solution.state[solution.done].sum(), list(field.parameters()))

    healthy = solve(field, start[[0, 2]], (0.0, 1.0), stepping="individual", gradient=gradient)
    expected = torch.autograd.grad(healthy.state.sum(), list(field.parameters()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_a_broken_neighbour_changes_neither_answer_nor_steps(method: str, gradient: str) -> None:
    def field(t: Tensor, z: Tensor) -> Tensor:
        return z.square() * torch.exp(1e3 * torch.relu(z - 3.0))

    start = torch.tensor([[2.0], [0.5], [torch.nan]])
    steps = None if method == "dopri5" else 16
    options = {"stepping": "individual", "gradient": gradient, "method": method, "steps": steps}
    beside = solve(field, start, (0.0, 1.0), **options)
    alone = solve(field, start[1:2], (0.0, 1.0), **options)

    assert beside.done.tolist() == [False, True, False]
    torch.testing.assert_close(beside.state[1:2], alone.state)
    assert beside.stats.accepted[1] == alone.stats.accepted[0]
    assert beside.stats.rejected[1] == alone.stats.rejected[0]


@pytest.mark.parametrize("gradient", ["checkpoint", "adjoint"])
def test_the_backward_account_and_tolerances_fit_beside_a_failed_sample(gradient: str) -> None:
    field, start = Swirl(), torch.randn(4, 3)
    start[0] = torch.nan
    tolerance = torch.tensor([1e-2, 1e-9, 1e-3, 1e-6])
    counted = Counted(field, 4)
    options = {"stepping": "individual", "gradient": gradient, "tolerance": tolerance}
    solution = solve(
        counted, start.requires_grad_(), (0.0, 1.0), context=(torch.arange(4.0),), **options
    )
    forward = counted.calls.clone()
    (slope,) = torch.autograd.grad(solution.state.sum(), start)

    assert torch.equal(counted.calls - forward, solution.stats.backward)
    assert (slope[0] == 0).all() and slope[1:].isfinite().all()
    if gradient == "adjoint":
        assert solution.stats.backward[1] > solution.stats.backward[3] > solution.stats.backward[2]


def test_parameters_do_not_control_the_steps_of_the_adjoint() -> None:
    field, start = Swirl(), torch.randn(4, 3)
    many = []
    for scale in (
        1.0,
        1e6,
    ):  # a parameter whose gradient is huge and rough, and that changes nothing
        extra = nn.Parameter(torch.zeros(()))

        def shaken(t: Tensor, z: Tensor, extra: Tensor = extra, scale: float = scale) -> Tensor:
            return field(t, z) + scale * extra * torch.sin(300.0 * z)

        named = [*field.parameters(), extra]
        solution = solve(shaken, start, (0.0, 1.0), gradient="adjoint", parameters=named)
        solution.state.sum().backward()
        many.append(int(solution.stats.backward))
    assert many[0] == many[1]


def test_a_parameter_named_twice_counts_once_and_hooks_see_the_whole_gradient() -> None:
    weight, start = nn.Parameter(torch.ones(())), torch.ones(1, 1)
    seen: list[float] = []
    weight.register_hook(lambda gradient: seen.append(gradient.item()))
    for gradient in ("checkpoint", "adjoint"):
        options = {"gradient": gradient, "parameters": [weight, weight], "tolerance": 1e-9}
        solve(lambda t, z: weight * z, start, (0.0, 1.0), **options).state.sum().backward()
    assert seen == pytest.approx([torch.e, torch.e], abs=1e-6)


def test_hidden_gradients_are_found_behind_siblings_and_context() -> None:
    start = torch.ones(2, 1)
    first, second = (nn.Parameter(torch.ones(2, 2)) * 1.0).chunk(2, 1)
    for field in (lambda t, z, c: c * z + second, lambda t, z, c: first * z):
        with pytest.raises(ValueError, match="neither its parameters nor its context"):
            solve(field, start, (0.0, 1.0), context=(first,))


def test_states_are_freed_after_the_backward_pass() -> None:
    field, start = Wide(8, 16), torch.randn(200, 8)
    losses: list[Tensor] = []

    def train() -> None:
        losses.append(solve(field, start, (0.0, 1.0), tolerance=1e-8).state.sum())
        torch.autograd.grad(losses[0], list(field.parameters()))

    held, _ = allocated(train)
    assert held < start.numel() * start.element_size()


def test_a_method_or_partial_of_a_module_brings_its_parameters() -> None:
    field = Swirl()
    for callable_field in (field.forward, partial(field.forward)):
        state = solve(callable_field, torch.randn(2, 3), (0.0, 1.0)).state
        assert all(
            g.abs().sum() > 0 for g in torch.autograd.grad(state.sum(), list(field.parameters()))
        )


def test_weights_changed_between_forward_and_backward_are_refused() -> None:
    field = Swirl()
    state = solve(field, torch.randn(2, 3), (0.0, 1.0)).state
    with torch.no_grad():
        field.first.weight += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        state.sum().backward()


def test_nothing_is_recorded_where_no_gradient_is_wanted() -> None:
    field, start = Swirl(), torch.randn(2, 3)
    with torch.no_grad():
        assert not solve(field, start, (0.0, 1.0)).state.requires_grad
    assert not solve(field.requires_grad_(False), start, (0.0, 1.0)).state.requires_grad


def test_stages_without_weight_do_without_the_integrals() -> None:
    field, start = Swirl(), torch.randn(4, 3)
    calls = 0

    class Augmented(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = field

        def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            nonlocal calls
            calls += 1
            return field(t, state[0]), state[0].square().sum(1)

    found = {}
    for stepping in STEPPINGS:
        for drift in (None, field):
            calls = 0
            field.zero_grad()
            options = {"stepping": stepping, "drift": drift, "keep": 0}
            solution = solve(Augmented(), (start, torch.zeros(4)), (0.0, 1.0), **options)
            z, total = solution.state
            (z.sum() + total.square().sum()).backward()
            gradient = [parameter.grad.clone() for parameter in field.parameters()]
            found[stepping, drift is None] = (calls, z, total, gradient, solution.stats)
        with_all, without = found[stepping, True], found[stepping, False]
        steps = int(without[4].accepted.max())
        assert with_all[0] - without[0] >= 2 * steps  # one a step, forward and backward
        torch.testing.assert_close(with_all[1:4], without[1:4], rtol=0, atol=1e-14)
        assert torch.equal(with_all[4].evaluations, without[4].evaluations)  # all are counted
