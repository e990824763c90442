"""Models that are sized by their data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from infocnf.matching import matching_objective
from infocnf.models import InfoCNF
from infocnf.models.readout import data_end
from infocnf.runs.build import APART, build_data, build_model, fast_precision, settle, sized
from infocnf.runs.config import Config
from infocnf.runs.parsing import read_config


def images(folder: Path, height: int, width: int, channels: int = 1, classes: int = 2) -> Config:
    """The recipe for images of one's own, and images of noise."""
    count = 20 * classes
    rng = np.random.default_rng(0)
    shape = (count, height, width) if channels == 1 else (count, height, width, channels)
    path = folder / "images.npz"
    np.savez(path, x=rng.integers(0, 256, shape, dtype=np.uint8), y=np.arange(count) % classes)
    return read_config("images", [f"data.path={path}"])


@pytest.mark.parametrize("side", [*range(8, 34), 47, 48, 63, 64])
def test_images_of_every_size_are_matched_by_default(tmp_path: Path, side: int) -> None:
    torch.set_default_dtype(torch.float32)
    config = images(tmp_path, side, side + side % 3, channels=1 + 2 * (side % 2))
    data = build_data(config)
    config = settle(config, data)
    model = build_model(config, data)
    assert isinstance(model, InfoCNF)
    x, labels = data.examples("train")
    prepared = data.preparation(x[:2], torch.float32)
    loss = matching_objective(model, prepared, {n: y[:2] for n, y in labels.items()}).loss
    loss.backward()
    reached = [p.grad is not None for p in model.flow.single[1].matched_field.parameters()]
    assert loss.isfinite() and all(reached)
    assert data_end(model, prepared).shape[-1] in (side + side % 3, (side + side % 3) // 2)


@pytest.mark.parametrize("side", [8, 16, 40])
def test_labels_lie_as_far_apart_whatever_the_size_of_an_image(tmp_path: Path, side: int) -> None:
    config = images(tmp_path, side, side, classes=10)
    data = build_data(config)
    model = build_model(config, data)
    assert isinstance(model, InfoCNF)
    (patterns,) = model.code.pattern_codes()
    apart = torch.pdist(patterns)
    assert float(apart.mean()) == pytest.approx(APART, rel=0.1)
    assert float(apart.min()) > 0.8 * APART


def test_a_size_that_was_chosen_is_kept(tmp_path: Path) -> None:
    config = images(tmp_path, 8, 8)
    own = config.model.model_copy(update={"hidden": [8], "separation": 0.123456})
    assert sized(own, build_data(config)) == own


def test_a_run_says_in_which_precision_it_was_made(tmp_path: Path) -> None:
    config = images(tmp_path, 8, 8)
    assert config.matching.precision == "auto"
    settled = settle(config, build_data(config))
    assert settled.matching.precision in ("float32", "bfloat16")
    assert fast_precision("float32") == "float32"
    assert math.isclose(settled.model.separation, APART / math.sqrt(2 * 32), abs_tol=1e-3)
