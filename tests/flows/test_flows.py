"""Flows: undone by their inverse, log-determinants against autograd, shapes of the paper, errors
that help.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from infocnf.flows import (
    Bijection,
    Chain,
    ContinuousBlock,
    Flatten,
    Logit,
    Scale,
    Squeeze,
    Traversal,
    build_flow,
    dequantise,
    quantise,
)
from infocnf.networks import ConvField, DenseField
from infocnf.ode import SolveError
from infocnf.random import sample_seeds
from infocnf.tolerances import Fixed, PerBlock


def exact_block(field: torch.nn.Module, shape: tuple[int, ...], index: int) -> ContinuousBlock:
    return ContinuousBlock(field, shape, index, trace="exact")


def bijections() -> dict[str, tuple[Bijection, tuple[int, ...]]]:
    torch.manual_seed(1)
    small = {"hidden": (6, 6)}
    return {
        "dense": (exact_block(DenseField(3, (8, 8)), (3,), 0), (3,)),
        "squash": (exact_block(DenseField(3, (8,), "concat_squash", "tanh"), (3,), 0), (3,)),
        "conv": (exact_block(ConvField(2, (6,)), (2, 2, 2), 0), (2, 2, 2)),
        "squeeze": (Squeeze(), (1, 4, 6)),
        "flatten": (Flatten((2, 3)), (2, 3)),
        "logit": (Logit(0.05), (1, 2, 3)),
        "scale": (Scale(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0])), (2,)),
        "chain": (Chain([Logit(1e-3), Squeeze(), Flatten((4, 1, 2))]), (1, 2, 4)),
        "flat": (build_flow((3,), "flat", exact_block, hidden=(8, 8)), (3,)),
        "multiscale 4x4": (
            build_flow((1, 4, 4), "multiscale", exact_block, scales=2, **small),
            (1, 4, 4),
        ),
        "multiscale 4x8": (
            build_flow((2, 4, 8), "multiscale", exact_block, scales=2, **small),
            (2, 4, 8),
        ),
        "one scale": (build_flow((1, 3, 5), "multiscale", exact_block, **small), (1, 3, 5)),
    }


NAMES = list(bijections())


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[Bijection, Tensor]:
    bijection, shape = bijections()[request.param]
    return bijection.double(), torch.rand(3, *shape)


def travel(x: Tensor, tolerance: float, log_det: bool = True) -> Traversal:
    return Traversal(Fixed(tolerance), seeds=sample_seeds(x) if log_det else None)


def test_a_flow_is_undone_by_its_inverse(case: tuple[Bijection, Tensor]) -> None:
    bijection, x = case
    with torch.no_grad():
        z, _ = bijection(x, travel(x, 1e-6))
        back = bijection.inverse(z, travel(x, 1e-6))
    torch.testing.assert_close(back, x, rtol=0, atol=1e-4)


def test_log_det_is_that_of_autograds_jacobian(case: tuple[Bijection, Tensor]) -> None:
    bijection, x = case
    with torch.no_grad():
        _, log_det = bijection(x, travel(x, 1e-8))

    for sample, found in zip(x, log_det, strict=True):

        def whole(flat: Tensor, sample: Tensor = sample) -> Tensor:
            traversal = Traversal(Fixed(1e-9), {"gradient": "backprop"})
            return bijection(flat.reshape(1, *sample.shape), traversal)[0].flatten()

        jacobian = torch.autograd.functional.jacobian(whole, sample.flatten())
        assert torch.linalg.slogdet(jacobian).logabsdet.item() == pytest.approx(
            found.item(), abs=1e-5
        )


def test_without_log_det_the_code_is_the_same(case: tuple[Bijection, Tensor]) -> None:
    bijection, x = case
    with torch.no_grad():
        z, _ = bijection(x, travel(x, 1e-7))
        plain, _ = bijection(x, travel(x, 1e-7, log_det=False))
    torch.testing.assert_close(plain, z, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "scales", "blocks", "sizes"),
    [
        ((3, 32, 32), None, 14, (1536, 768, 384, 384)),
        ((1, 28, 28), None, 10, (392, 196, 196)),
        ((1, 8, 8), None, 6, (32, 32)),
        ((1, 8, 8), 3, 10, (32, 16, 16)),
        ((3, 32, 32), 1, 2, (3072,)),
        ((1, 7, 7), None, 2, (49,)),
        ((1, 6, 8), 2, 6, (24, 24)),
    ],
)
def test_scales_and_blocks_are_those_of_the_paper(
    shape: tuple[int, int, int], scales: int | None, blocks: int, sizes: tuple[int, ...]
) -> None:
    flow = build_flow(shape, "multiscale", ContinuousBlock, scales=scales, hidden=(4,))

    assert len(flow.blocks) == blocks and flow.sizes == sizes
    assert sum(flow.sizes) == math.prod(shape)
    assert [block.index for block in flow.blocks] == list(range(blocks))


def test_the_doubled_model_has_four_blocks_where_the_others_have_two() -> None:
    assert (
        len(build_flow((3, 32, 32), "multiscale", ContinuousBlock, blocks=4, hidden=(4,)).blocks)
        == 28
    )


def test_a_shape_that_cannot_be_squeezed_is_named_with_the_remedy() -> None:
    with pytest.raises(
        ValueError, match=r"28x28 cannot have 4 scales: after 2 squeezes.*7x7.*scales=3"
    ):
        build_flow((1, 28, 28), "multiscale", ContinuousBlock, scales=4)
    with pytest.raises(ValueError, match="an image of 5x4 cannot be squeezed"):
        Squeeze()(torch.rand(1, 1, 5, 4), travel(torch.rand(1, 1), 1e-5))


def test_auto_takes_the_exact_trace_up_to_sixteen_products() -> None:
    assert ContinuousBlock(DenseField(16), (16,)).exact
    assert not ContinuousBlock(DenseField(17), (17,)).exact
    assert not ContinuousBlock(DenseField(2), (2,), trace="hutchinson").exact


def test_auto_takes_the_trace_that_a_field_knows_in_any_number_of_dimensions() -> None:
    block = ContinuousBlock(DenseField(40, (8, 8)), (40,))
    assert block.exact and block.exact_products == 1
    assert not ContinuousBlock(DenseField(40, (8, 8)), (40,), trace="hutchinson").exact
    x = torch.randn(3, 40)
    with torch.no_grad():
        by_units = ContinuousBlock(DenseField(40, (8, 8)), (40,), trace="exact")
        by_units.load_state_dict(block.state_dict())
        by_units.field.constant = False
        expected = by_units(x, travel(x, 1e-6))[1]
        torch.testing.assert_close(block(x, travel(x, 1e-6))[1], expected)


def test_several_probes_come_closer_to_the_exact_trace() -> None:
    field, x = DenseField(8, (16,)), torch.randn(64, 8)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter *= 2.0
        exact = ContinuousBlock(field, (8,), trace="exact")(x, travel(x, 1e-6))[1]
        errors = []
        for count in (1, 16):
            block = ContinuousBlock(field, (8,), trace="hutchinson", probe_count=count)
            errors.append((block(x, travel(x, 1e-6))[1] - exact).square().mean().sqrt())
    assert errors[1] < 0.5 * errors[0]


def test_the_probe_is_drawn_once_per_solve_and_differs_between_blocks() -> None:
    seen: list[list[Tensor]] = [[], []]
    field = DenseField(20, (8,))
    blocks = [ContinuousBlock(field, (20,), index, trace="hutchinson") for index in (0, 1)]
    x = torch.randn(2, 20)
    for block, probes in zip(blocks, seen, strict=True):
        block.dynamics.register_forward_pre_hook(
            lambda _, given, probes=probes: probes.append(given[2])
        )
        with torch.no_grad():
            block(x, Traversal(Fixed(1e-5), {"stepping": "shared"}, seeds=sample_seeds(x)))

    for probes in seen:
        assert len(probes) > 6 and all(torch.equal(probe, probes[0]) for probe in probes)
    assert not torch.equal(seen[0][0], seen[1][0])


def test_each_block_is_solved_at_the_tolerance_its_policy_names() -> None:
    flow = build_flow((3,), "flat", exact_block, hidden=(8,))
    x = torch.randn(4, 3)
    traversal = Traversal(PerBlock([1e-2, 1e-9]), {"stepping": "shared"}, seeds=sample_seeds(x))
    with torch.no_grad():
        flow(x, traversal)

    loose, tight = traversal.solves
    assert (loose.choice.tolerance, tight.choice.tolerance) == (1e-2, 1e-9)
    assert tight.solution.stats.forward > loose.solution.stats.forward
    with pytest.raises(ValueError, match="there is no tolerance for block 1: there are 1"):
        flow(x, Traversal(PerBlock([1e-2])))


def test_warm_starts_are_for_training_only() -> None:
    block, x = exact_block(DenseField(3, (8,)), (3,), 0), torch.randn(4, 3)
    cold = Traversal(Fixed(1e-5), {"stepping": "shared"}, seeds=sample_seeds(x))
    block(x, cold)
    assert block.first_step is None
    for _ in range(3):
        warm = Traversal(Fixed(1e-5), {"stepping": "shared"}, seeds=sample_seeds(x), warm=True)
        block(x, warm)
    assert block.first_step is not None
    assert warm.solves[0].solution.stats.forward < cold.solves[0].solution.stats.forward


def test_a_block_that_fails_says_which_it_is() -> None:
    field = DenseField(2, (4,))
    with torch.no_grad():
        field.layers[-1].map.bias.fill_(torch.nan)
    block, x = ContinuousBlock(field, (2,), index=7), torch.randn(3, 2)
    with pytest.raises(
        SolveError, match=r"block 7 failed for 3 of 3 samples \(rows 0, 1, 2\), at time 0 "
    ):
        block(x, travel(x, 1e-5))


def test_dequantised_grey_levels_return_to_themselves_and_stay_below_one() -> None:
    levels = torch.arange(17).reshape(1, 17).expand(5000, 17)
    x = dequantise(levels.float(), 17)

    assert x.min() >= 0 and x.max() < 1 and x.dtype == torch.float32
    assert torch.equal(quantise(x, 17), levels)
    twice = [dequantise(levels[:2], 17, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*twice)
    with pytest.raises(ValueError, match=r"must lie in 0 .. 15, got 0 .. 16"):
        dequantise(levels, 16)


def test_black_and_white_are_equally_exact_in_single_precision() -> None:
    ends = torch.tensor([[0.0], [1.0]], dtype=torch.float32)
    single, double = (Logit(1e-6)(x, travel(x, 1e-5)) for x in (ends, ends.double()))
    for found, exact in zip(single, double, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)


def test_grey_levels_that_were_not_scaled_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pixels must lie in \[0, 1\], got 0 to 255"):
        Logit()(torch.tensor([[0.0, 255.0]]), travel(torch.rand(1, 1), 1e-5))
