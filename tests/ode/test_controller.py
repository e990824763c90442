"""Error norms and step-size control against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infocnf.ode.controller import Controller, State, finite, first_step, relative, rms


def test_the_error_ratio_is_the_largest_root_mean_square_relative_to_the_larger_state() -> None:
    error = (torch.tensor([[0.3, 0.4], [0.0, 0.0]]), torch.tensor([0.1, 6.0]))
    before = (torch.zeros(2, 2), torch.tensor([0.0, 1.0]))
    after = (torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([0.0, -2.0]))

    scaled = [relative(e, y.abs(), z.abs()) for e, y, z in zip(error, before, after, strict=True)]
    individual = rms(scaled, individual=True).max(0)
    first = np.sqrt((0.3**2 + (0.4 / 2.0) ** 2) / 2)
    assert individual == pytest.approx([first, 6.0 / 3.0])
    shared = rms(scaled, individual=False).max(0)
    second = np.sqrt((0.1**2 + 2.0**2) / 2)
    assert shared == pytest.approx([second])


def test_finiteness_is_judged_by_lane_and_without_squaring() -> None:
    parts = (torch.tensor([[1e200], [1.0], [1.0]]), torch.tensor([1.0, torch.nan, torch.inf]))
    assert finite(parts, individual=True).tolist() == [True, False, False]
    assert finite(parts, individual=False).tolist() == [False]
    sizes = rms([torch.zeros(2, 0), torch.tensor([3.0, 4.0])], individual=True)
    assert sizes.tolist() == [[0.0, 0.0], [3.0, 4.0]]


def test_the_next_step_follows_the_proportional_integral_rule() -> None:
    controller = Controller(order=5)
    ratio, previous = np.array([0.5, 0.5, 1e-9, np.nan]), np.array([1.0, 0.25, 1.0, 1.0])
    expected = 0.9 * 0.5 ** -(1 / 5 - 0.03)

    growth = controller.factor(ratio, previous)
    assert growth[0] == pytest.approx(expected)
    assert growth[1] == pytest.approx(expected * 0.25**0.04)
    assert growth[2:].tolist() == [10.0, 0.2]
    assert controller.elementary(np.array([32.0]))[0] == pytest.approx(0.45)


def test_a_sum_that_starts_at_zero_does_not_make_the_first_step_a_crumb() -> None:
    tolerance = 1e-3

    def field(step: np.ndarray, y: State) -> State:
        z = y[0] * (1.0 + step[0] * -1.0)  # an Euler step along dz/dt = -z
        return -z, 1000.0 * z[:, 0]

    y = (torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    start = field(np.zeros(1), y)
    found = first_step(field, y, start, np.array([tolerance]), 1.0, 5, True, 2)
    # the guess is a hundredth of z / z'; at it the sum's slope, 1000, is the largest derivative
    assert found == pytest.approx([(0.01 * tolerance / 1000.0) ** (1 / 5)])


def test_the_last_step_reaches_the_end_and_leaves_no_crumb() -> None:
    step, remaining = np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.5, 1.04, 1.5, 5.0])
    assert Controller(order=5).fit(step, remaining).tolist() == [0.5, 1.04, 0.75, 1.0]
