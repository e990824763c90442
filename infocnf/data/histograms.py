"""Histograms of training examples, pixel by pixel or column by column."""

from __future__ import annotations

import torch
from torch import Tensor

from infocnf.data.dataset import Dataset
from infocnf.flows.marginals import column_tables, pixel_tables

__all__ = ["marginal_tables"]

LARGEST_BINS = 64  # of a column


def marginal_tables(data: Dataset) -> tuple[Tensor, Tensor]:
    """Histograms of the training examples, pixel by pixel or column by column."""
    x, _ = data.examples("train")
    preparation = data.preparation
    if preparation.is_images:
        images = torch.cat([x, x.flip(-1)]) if preparation.flip else x
        return pixel_tables(images, preparation.levels)
    rows = preparation(x, torch.float64)
    return column_tables(rows, bins=max(1, min(LARGEST_BINS, len(rows) // 16)))
