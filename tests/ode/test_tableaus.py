"""Coefficients satisfy the order conditions they claim, exactly up to rounding."""

from __future__ import annotations

import numpy as np
import pytest

from infocnf.ode import SolverOptions
from infocnf.ode.tableaus import TABLEAUS, Tableau

ALL = list(TABLEAUS.values())
ADAPTIVE = [table for table in ALL if table.adaptive]


def order_conditions(table: Tableau, weights: np.ndarray) -> list[tuple[int, float]]:
    """Residuals of the conditions of all rooted trees with up to five vertices, with orders."""
    s = table.stages
    a = np.zeros((s, s))
    for i, row in enumerate(table.a):
        a[i, : len(row)] = row
    c, b, one = np.array(table.c), weights, np.ones(s)
    trees = [
        (1, b @ one, 1),
        (2, b @ c, 1 / 2),
        (3, b @ c**2, 1 / 3),
        (3, b @ a @ c, 1 / 6),
        (4, b @ c**3, 1 / 4),
        (4, b @ (c * (a @ c)), 1 / 8),
        (4, b @ a @ c**2, 1 / 12),
        (4, b @ a @ a @ c, 1 / 24),
        (5, b @ c**4, 1 / 5),
        (5, b @ (c**2 * (a @ c)), 1 / 10),
        (5, b @ (a @ c) ** 2, 1 / 20),
        (5, b @ (c * (a @ c**2)), 1 / 15),
        (5, b @ a @ c**3, 1 / 20),
        (5, b @ (c * (a @ a @ c)), 1 / 30),
        (5, b @ a @ (c * (a @ c)), 1 / 40),
        (5, b @ a @ a @ c**2, 1 / 60),
        (5, b @ a @ a @ a @ c, 1 / 120),
    ]
    return [(order, abs(float(value) - target)) for order, value, target in trees]


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_a_method_satisfies_exactly_the_order_conditions_it_claims(table: Tableau) -> None:
    residuals = order_conditions(table, np.array(table.b))

    assert max(r for order, r in residuals if order <= table.order) < 1e-12
    beyond = [r for order, r in residuals if order == table.order + 1]
    assert not beyond or max(beyond) > 1e-6


@pytest.mark.parametrize("table", ADAPTIVE, ids=lambda table: table.name)
def test_the_embedded_method_is_one_order_lower(table: Tableau) -> None:
    embedded = np.array(table.b) - np.array(table.e)
    residuals = order_conditions(table, embedded)

    assert max(r for order, r in residuals if order < table.order) < 1e-12
    assert max(r for order, r in residuals if order == table.order) > 1e-6


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_stage_times_are_the_row_sums(table: Tableau) -> None:
    np.testing.assert_allclose([sum(row) for row in table.a], table.c, atol=1e-12)


def test_the_last_stage_of_dopri5_tsit5_and_bosh3_is_the_first_of_the_next_step() -> None:
    assert [table.name for table in ALL if table.fsal] == ["dopri5", "tsit5", "bosh3"]


def test_an_unknown_method_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"dopri5.*rk4, got 'dopri6'"):
        SolverOptions("dopri6")


def test_only_the_second_stage_of_dopri5_has_no_weight() -> None:
    silent = {name: [i for i, s in enumerate(t.silent) if s] for name, t in TABLEAUS.items()}
    assert silent.pop("dopri5") == [1]
    assert silent.pop("midpoint") == [0]  # which is the slope itself
    assert not any(silent.values())
