"""Error norms and step-size control against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infocnf.ode.controller import Controller, finite, relative, rms


def test_the_error_ratio_is_the_largest_root_mean_square_relative_to_the_larger_state() -> None:
    error = (torch.tensor([[0.3, 0.4], [0.0, 0.0]]), torch.tensor([0.1, 6.0]))
    before = (torch.zeros(2, 2), torch.tensor([0.0, 1.0]))
    after = (torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([0.0, -2.0]))

    scaled = [relative(e, y.abs(), z.abs()) for e, y, z in zip(error, before, after, strict=True)]
    individual = rms(scaled, individual=True)
    first = np.sqrt((0.3**2 + (0.4 / 2.0) ** 2) / 2)
    assert individual == pytest.approx([first, 6.0 / 3.0])
    shared = rms(scaled, individual=False)
    second = np.sqrt((0.1**2 + 2.0**2) / 2)
    assert shared == pytest.approx([second])


def test_finiteness_is_judged_by_lane_and_without_squaring() -> None:
    parts = (torch.tensor([[1e200], [1.0], [1.0]]), torch.tensor([1.0, torch.nan, torch.inf]))
    assert finite(parts, individual=True).tolist() == [True, False, False]
    assert finite(parts, individual=False).tolist() == [False]
    assert rms([torch.zeros(2, 0), torch.tensor([3.0, 4.0])], individual=True).tolist() == [
        3.0,
        4.0,
    ]


def test_the_next_step_follows_the_proportional_integral_rule() -> None:
    controller = Controller(order=5)
    ratio, previous = np.array([0.5, 0.5, 1e-9, np.nan]), np.array([1.0, 0.25, 1.0, 1.0])
    expected = 0.9 * 0.5 ** -(1 / 5 - 0.03)

    growth = controller.factor(ratio, previous)
    assert growth[0] == pytest.approx(expected)
    assert growth[1] == pytest.approx(expected * 0.25**0.04)
    assert growth[2:].tolist() == [10.0, 0.2]
    assert controller.elementary(np.array([32.0]))[0] == pytest.approx(0.45)


def test_the_last_step_reaches_the_end_and_leaves_no_crumb() -> None:
    step, remaining = np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.5, 1.04, 1.5, 5.0])
    assert Controller.fit(step, remaining).tolist() == [0.5, 1.04, 0.75, 1.0]
