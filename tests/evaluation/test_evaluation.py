"""Evaluations that choose their own tolerance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from infocnf import InfoCNF
from infocnf.data import Preparation, spread_over
from infocnf.errors import InputError, WorkError
from infocnf.evaluation import evaluate, evaluate_within
from infocnf.evaluation.driver import Driver
from infocnf.evaluation.likelihood import TOLERANCES
from infocnf.reports.samples import class_grid

ROWS = Preparation(1, False, (0.0, 0.0), (1.0, 1.0))


def bent(**arguments: object) -> tuple[InfoCNF, Tensor]:
    """A flow that needs some steps, and rows."""
    model = InfoCNF((2,), blocks=1, hidden=(16, 16), **arguments)  # type: ignore[arg-type]
    for parameter in model.flow.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval(), torch.randn(60, 2)


@pytest.mark.parametrize("budget", [1e-4, 1e-5])
def test_the_loosest_tolerance_within_a_budget_is_found(budget: float) -> None:
    model, x = bent()
    found = evaluate_within(Driver(model, ROWS), x, {}, budget=budget)
    assert found.numerical_error_bits_per_dim <= budget
    place = TOLERANCES.index(found.tolerance)
    looser = evaluate(Driver(model, ROWS), x, {}, tolerance=TOLERANCES[place - 1])
    assert looser.numerical_error_bits_per_dim > budget  # it would not have done
    with torch.no_grad():
        exact, own = (model.log_prob(x, tolerance=t) for t in (1e-10, TOLERANCES[place]))
    assert float((own - exact).abs().mean()) / (2.0 * math.log(2.0)) <= budget


def test_a_budget_that_nothing_keeps_is_refused() -> None:
    model, x = bent()
    with pytest.raises(WorkError, match="within 1e-15 bits/dim: give a larger budget"):
        evaluate_within(Driver(model, ROWS), x[:5], {}, budget=1e-15)
    with pytest.raises(ValueError, match="budget must be positive, got 0"):
        evaluate_within(Driver(model, ROWS), x, {}, budget=0)
    fixed, _ = bent(method="rk4", steps=4)
    with pytest.raises(InputError, match="without error estimate"):
        evaluate_within(Driver(fixed, ROWS), x, {}, budget=1e-3)


def test_some_examples_are_spread_over_all() -> None:
    x = torch.arange(1000.0).unsqueeze(1)
    some, labels = spread_over(x, {"y": torch.arange(1000)}, 7)
    assert len(some.unique()) == 7 and float(some[0]) == 0.0 and float(some[-1]) == 999.0
    assert torch.equal(some[:, 0].long(), labels["y"])
    assert len(spread_over(x, {}, None)[0]) == len(spread_over(x, {}, 5000)[0]) == 1000


def test_samples_of_few_classes_fill_several_rows_each() -> None:
    x = torch.arange(100.0).reshape(100, 1, 1, 1)  # of two classes in turn
    grid = class_grid(x, ["even", "odd"], 2)
    assert grid.images.shape[:2] == (10, 10)
    assert [name for name in grid.rows if name] == ["even", "odd"] and grid.rows[5] == "odd"
    assert (grid.images[:5] % 2 == 0).all() and (grid.images[5:] % 2 == 1).all()
    assert len(grid.images.unique()) == 100
    for count, classes, shape in ((7, 3, (3, 3)), (10, 2, (4, 3)), (5, 0, (2, 3)), (3, 0, (2, 2))):
        grid = class_grid(2.0 + x[:count], list("abc")[:classes], 2)
        assert grid.images.shape[:2] == shape
        assert int((grid.images > 1).sum()) == count  # all are there, the others white
