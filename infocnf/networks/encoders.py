"""Recurrent networks that read a series backwards in time, so that what they end with knows most
of the series' beginning.

Rows have a time and several values, some of which may be missing; series differ in length and in
their times. A network is told, row by row, the values (zero where missing), which of them are
there, and how much time lies between this row and the one it read before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ENCODERS", "SeriesEncoder", "backwards", "lengths_of"]

ENCODERS = ("rnn", "gru", "ode_rnn")


def lengths_of(series: Tensor) -> Tensor:
    """Number of rows of each series ``(batch, rows, 1 + channels)``, whose times come first and are
    NaN after its end; ``(batch,)``.
    """
    return series[..., 0].isfinite().sum(1)


def backwards(series: Tensor) -> tuple[Tensor, Tensor]:
    """What a network reads, ``(batch, rows, 2 channels + 1)``: values, presence and gap of each row
    from the last to the first, then anything; and the lengths.
    """
    lengths = lengths_of(series)
    rows = torch.arange(series.shape[1], device=series.device)
    order = (lengths.unsqueeze(1) - 1 - rows).clamp(min=0)
    turned = series.gather(1, order.unsqueeze(2).expand_as(series))
    times, values = turned[..., 0], turned[..., 1:]
    gaps = torch.zeros_like(times)
    gaps[:, 1:] = times[:, :-1] - times[:, 1:]
    there = values.isfinite()
    inputs = [values.where(there, 0.0), there.to(values), gaps.nan_to_num().unsqueeze(2)]
    return torch.cat(inputs, 2), lengths


class Drift(nn.Module):
    """How the state of a network changes while nothing is observed."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(units, units), nn.Tanh(), nn.Linear(units, units))

    def forward(self, h: Tensor, gap: Tensor) -> Tensor:
        """States ``(batch, units)`` after gaps ``(batch, 1)``: one step of the midpoint rule."""
        return h + gap * self.layers(h + 0.5 * gap * self.layers(h))


class SeriesEncoder(nn.Module):
    """Features ``(batch, units)`` of series ``(batch, rows, 1 + channels)``.

    Arguments:
        channels: Number of values of a row.
        units: Size of the recurrent state.
        kind: ``rnn`` (the paper's), ``gru``, or ``ode_rnn``: a GRU whose state follows an ODE from
            one row to the next, for irregular times (Rubanova et al. 2019).
    """

    def __init__(self, channels: int, units: int, kind: str = "rnn") -> None:
        super().__init__()
        if kind not in ENCODERS:
            raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, got {kind!r}")
        inputs = 2 * channels + 1
        self.kind, self.units = kind, units
        makers: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU}
        self.network: nn.Module
        if kind == "ode_rnn":
            self.network, self.drift = nn.GRUCell(inputs, units), Drift(units)
        else:
            self.network = makers[kind](inputs, units, batch_first=True)

    def forward(self, series: Tensor) -> Tensor:
        inputs, lengths = backwards(series)
        if self.kind != "ode_rnn":
            states, _ = self.network(inputs)  # what follows the first row of a series is not read
            last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, self.units)
            return states.gather(1, last).squeeze(1)

        h = inputs.new_zeros(len(inputs), self.units)
        for i, row in enumerate(inputs.unbind(1)):
            gap, there = row[:, -1:], (i < lengths).unsqueeze(1)
            h = torch.where(there, self.network(row, self.drift(h, gap)), h)
        return h
