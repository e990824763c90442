"""Fields: time in both shapes, slow and stacked passes, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from infocnf.networks import ConvField, DenseField
from infocnf.networks.fields import check_field

FIELDS = {
    "concat": lambda: (DenseField(3, (8, 8)), (3,)),
    "concat_squash": lambda: (DenseField(3, (8, 8), time="concat_squash"), (3,)),
    "tanh": lambda: (DenseField(3, (8, 8), activation="tanh"), (3,)),
    "conv": lambda: (ConvField(2, (6, 6)), (2, 5, 4)),
}


@pytest.mark.parametrize("name", FIELDS)
def test_one_time_for_all_equals_the_same_time_for_each(name: str) -> None:
    field, shape = FIELDS[name]()
    z, t = torch.randn(4, *shape), torch.tensor(0.7)
    torch.testing.assert_close(field(t, z), field(t.expand(4), z))
    assert not torch.allclose(field(t, z), field(t / 2, z))


@pytest.mark.parametrize("per_sample_time", [False, True])
@pytest.mark.parametrize("name", FIELDS)
def test_pushforward_is_the_derivative_along_its_tangents(name: str, per_sample_time: bool) -> None:
    field, shape = FIELDS[name]()
    z, tangents = torch.randn(4, *shape), torch.randn(2, 4, *shape)
    t = torch.rand(4) if per_sample_time else torch.tensor(0.4)

    slopes, pushed = field.pushforward(t, z, tangents)
    torch.testing.assert_close(slopes, field(t, z))
    for tangent, derivative in zip(tangents, pushed, strict=True):
        _, expected = torch.func.jvp(lambda z: field(t, z), (z,), (tangent,))
        torch.testing.assert_close(derivative, expected)


@pytest.mark.parametrize("activation", ["softplus", "tanh"])
@pytest.mark.parametrize("hidden", [(7,), (7, 9), (7, 9, 5), (7, 9, 5, 6)])
def test_a_dense_field_knows_the_trace_of_its_jacobian(
    hidden: tuple[int, ...], activation: str
) -> None:
    field = DenseField(4, hidden, activation=activation, context=2)
    z, t, context = torch.randn(3, 4), torch.rand(3), torch.randn(3, 2)
    slopes, trace = field.with_trace(t, z, context)
    torch.testing.assert_close(slopes, field(t, z, context))

    def one(z: torch.Tensor, t: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return field(t.unsqueeze(0), z.unsqueeze(0), c.unsqueeze(0))[0]

    jacobians = torch.func.vmap(torch.func.jacrev(one))(z, t, context)
    torch.testing.assert_close(trace, jacobians.diagonal(dim1=1, dim2=2).sum(1))


def test_only_fields_with_constant_weights_know_their_trace() -> None:
    known = {name: make()[0].trace_products for name, make in FIELDS.items()}
    assert known == {"concat": 1, "tanh": 1, "concat_squash": None, "conv": None}
    assert DenseField(3, (8, 6, 4)).trace_products == 8


@pytest.mark.parametrize("name", FIELDS)
def test_pushforward_can_be_differentiated_twice(name: str) -> None:
    field, shape = FIELDS[name]()
    z, tangents = torch.randn(2, *shape, requires_grad=True), torch.randn(1, 2, *shape)
    assert torch.autograd.gradgradcheck(
        lambda z: field.pushforward(torch.tensor(0.4), z, tangents)[1].sin().sum(), (z,)
    )


def test_the_convolutional_field_is_four_convolutions_with_time_as_a_channel() -> None:
    field, z, t = ConvField(2, (6, 6, 6)), torch.randn(3, 2, 4, 4), torch.tensor(0.3)
    h = z
    for i, layer in enumerate(field.layers):
        with_time = torch.cat([h, t.expand(3, 1, 4, 4)], 1)
        h = F.conv2d(with_time, layer.map.weight, layer.map.bias, padding=1)
        h = F.softplus(h) if i < 3 else h
    torch.testing.assert_close(field(t, z), h)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Dropout(0.1), "drops features at random"),
        (nn.Dropout2d(0.5), "drops features at random"),
        (nn.AlphaDropout(0.1), "drops features at random"),
        (nn.MultiheadAttention(4, 2, dropout=0.1), "drops features at random"),
        (nn.BatchNorm1d(4), "is a batch norm"),
        (nn.BatchNorm2d(4), "is a batch norm"),
        (nn.SyncBatchNorm(4), "is a batch norm"),
    ],
)
def test_random_or_batch_dependent_fields_are_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_field(nn.Sequential(nn.Linear(4, 4), layer))


def test_smooth_deterministic_layers_are_accepted() -> None:
    check_field(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.GroupNorm(2, 4), nn.LayerNorm(4))
    )


def test_unknown_variants_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="concat, concat_squash, got 'none'"):
        DenseField(3, time="none")
    with pytest.raises(ValueError, match="softplus, tanh, got 'relu'"):
        ConvField(3, activation="relu")
