"""What happens between the stages of a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infocnf.models import InfoCNF
from infocnf.models.labels import is_missing
from infocnf.models.sharpening import sharpen
from infocnf.training.refit import refit

if TYPE_CHECKING:
    from infocnf.training.module import FlowModule

__all__ = ["begin_stage", "finish_matching", "labelled"]

log = logging.getLogger("infocnf")


def begin_stage(module: FlowModule) -> None:
    """Forget what belongs to the stage before: moments of gradients, roll-backs, averages."""
    module.plain_optimizer.state.clear()
    module.candidate = module.good = None
    module.halvings = module.streak = 0
    if module.average is not None:
        module.average.n_averaged.zero_()


def labelled(examples: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
    """Indices of the examples whose labels are all known."""
    x, labels = examples
    known = torch.ones(len(x), dtype=torch.bool)
    for values in labels.values():
        known &= ~is_missing(values)
    return known.nonzero().flatten()


def finish_matching(module: FlowModule) -> None:
    """Go on from the averaged weights, with a prior fitted to their codes."""
    assert isinstance(module.model, InfoCNF)
    if module.average is not None:
        module.model.load_state_dict(module.evaluated.state_dict())
    sharpness = module.config.matching.sharpness
    if sharpness > 1.0 and module.model.code.heads:
        sharpen(module.model.flow, sharpness)
    count = module.config.matching.refit
    if count and all(len(labelled(module.examples[part])) for part in ("train", "validation")):
        parts = []
        for part in ("train", "validation"):
            usable = labelled(module.examples[part])
            chosen = torch.linspace(0, len(usable) - 1, min(count, len(usable))).long()
            x, labels = module.take(part, usable[chosen])
            parts.append((module.preparation(x, module.model_dtype), labels))
        size = module.config.evaluation.batch_size
        gains = refit(module.model.eval(), parts[0], parts[1], batch_size=size)
        module.model.train()
        told = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
        log.info("prior fitted to codes; nats gained per validation example: %s", told)
    if module.average is not None:
        module.evaluated.load_state_dict(module.model.state_dict())
