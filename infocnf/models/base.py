"""What models with a partitioned code have in common: labels, tolerances, and their two files."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from infocnf.models import pretrained
from infocnf.models.code import PartitionedCode
from infocnf.models.factors import Categorical, Factor, Real, factor_from_config, factor_to_config
from infocnf.random import Stream, combine_seeds, draw_normal
from infocnf.tolerances import (
    BlockShape,
    Fixed,
    PerBlock,
    Policy,
    as_policy,
    policy_from_config,
)

__all__ = ["Labels", "PartitionedModel", "Tolerance", "is_missing"]

log = logging.getLogger("infocnf")
Label = Tensor | float | Sequence[float]
Labels = Label | Mapping[str, Label]
Tolerance = float | Tensor | Sequence[float] | Policy


class PartitionedModel(nn.Module, ABC):
    r"""A model whose code :math:`z = [z_y, z_u]` has a part that knows the labels.

    In training mode solves share their steps over the batch and have the tolerances of the training
    policy; in evaluation mode each sample has its own steps, so that its answer depends on its
    batch by rounding only, and the evaluation tolerance.

    Attributes:
        factors: Labels by name.
        code: Partition, prior and classifiers.
        policy: Chooses the tolerances of training.
        tolerance: Chooses those of evaluation, and wherever a method is called without one.
    """

    factors: dict[str, Factor]
    code: PartitionedCode
    policy: Policy
    MACHINE: ClassVar[tuple[str, ...]] = ()  # arguments that are not of the model

    def __init__(
        self,
        factors: Mapping[str, Factor] | None,
        tolerance: Tolerance,
        training_tolerance: Tolerance | None,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.factors = check_factors(factors or {})
        # classes whose frequencies nobody gave, what was counted of them, whether that was said
        self._open = {n for n, f in self.factors.items() if getattr(f, "probabilities", ()) is None}
        self._counts: dict[str, Tensor] = {}
        self._said = False
        own = training_tolerance is not None
        self.policy = as_policy(tolerance if training_tolerance is None else training_tolerance)
        evaluation = as_policy(tolerance) if own else self.policy
        if own and not isinstance(evaluation, Fixed | PerBlock):
            raise ValueError(
                "beside a training_tolerance the tolerance must be a number, or one for each block"
            )
        self._tolerance = (evaluation,)  # not a module of its own: the policy may be the same
        self._arguments = {
            name: value for name, value in arguments.items() if name not in ("self", "__class__")
        }

    # ------------------------------------------------------------------------ what a subclass has

    @property
    @abstractmethod
    def blocks(self) -> Sequence[Any]:
        """The continuous blocks, each with its ``field``, ``solver`` and ``first_step``."""

    @property
    @abstractmethod
    def block_shapes(self) -> list[BlockShape]:
        """What a tolerance policy is told of the blocks."""

    @abstractmethod
    def logits(self, x: Tensor, *args: Any, **options: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Output ``(batch, outputs)`` of each factor's classifier."""

    # ------------------------------------------------------------------------------ predictions

    def predict_proba(self, x: Tensor, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Probabilities ``(batch, classes)`` of a categorical factor, a Normal for a real one, a
        dict of them for several; arguments as of :meth:`logits`.
        """
        found = self.logits(x, *args, **options).items()
        return self.single({n: self.factors[n].distribution(logits) for n, logits in found})

    def predict(self, x: Tensor, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """The most probable class or the expected number, ``(batch,)``; a dict for several;
        arguments as of :meth:`logits`.
        """
        found = self.logits(x, *args, **options).items()
        return self.single({n: self.factors[n].predict(logits) for n, logits in found})

    def single(self, values: dict[str, Any]) -> Any:  # noqa: ANN401
        """The only value where there is one factor, else all by name."""
        return next(iter(values.values())) if len(values) == 1 else values

    def check_labelled(self) -> None:
        """Refuse a model that knows no labels."""
        if not self.code.heads:
            raise ValueError(
                "this model has no supervised code to read a label from: "
                "give it factors and supervised > 0"
            )

    # ------------------------------------------------------------------------------- tolerances

    @property
    def tolerance(self) -> Policy:
        """Chooses tolerances in evaluation."""
        return self._tolerance[0]

    def policy_for(self, tolerance: Tolerance | None) -> Policy:
        """Who chooses tolerances: for None the policy of training or that of evaluation."""
        own = self.policy if self.training else self.tolerance
        policy = own if tolerance is None else as_policy(tolerance)
        policy.bind(self.block_shapes)
        return policy

    def solver_changes(self, stepping: str | None) -> dict[str, Any]:
        """How solves differ from the blocks' own options, in training and in evaluation."""
        return {"stepping": stepping or ("shared" if self.training else "individual")}

    # ----------------------------------------------------------------------------------- labels

    def labels(self, y: Labels | None, count: int) -> dict[str, Tensor]:
        """Labels by factor name, each ``(count,)``, checked."""
        labels = self.named(y)
        for name, label in labels.items():
            if label.ndim > 1 or (label.ndim == 1 and len(label) != count):
                raise ValueError(
                    f"labels must have shape () or ({count},), got {tuple(label.shape)}"
                )
            labels[name] = label.expand(count)

        return labels

    def drawn_labels(self, y: Labels | None, seeds: Tensor) -> dict[str, Tensor]:
        """The same, with labels of factors that were left out drawn as they occur, by the seeds of
        the samples.
        """
        labels = self.labels(y, len(seeds))
        self.check_frequencies(labels)
        for i, (name, factor) in enumerate(self.factors.items()):
            if name not in labels:
                like = torch.empty(len(seeds), dtype=torch.float64, device=seeds.device)
                labels[name] = factor.draw(draw_normal(seeds, like, Stream.LABEL - i))
        return labels

    def drawn_seeds(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Seeds ``(n,)`` of new samples: the first of them are the same whatever their number."""
        if not isinstance(n, int) or n < 0:
            raise ValueError(f"the number of samples must be a whole one, 0 or more, got {n!r}")
        device = None if generator is None else generator.device
        seed = torch.randint(2**62, (), generator=generator, device=device)
        return combine_seeds(seed.cpu(), torch.arange(n)).to(self.device)

    def partial_labels(
        self, y: Labels | None, count: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same where some labels may be missing, -1 for a class or NaN for a real value; and of
        factors that have such, which labels are known, ``(count,)``. Missing ones are filled in
        with anything.
        """
        if not isinstance(y, Mapping):
            if y is None or len(self.factors) != 1:
                return self.labels(y, count), {}
            y = dict.fromkeys(self.factors, y)
        filled, known = {}, {}
        for name, value in y.items():
            label = as_numbers(name, value).to(self.device)
            there = ~is_missing(label)
            filled[name] = label
            if not bool(there.all()):
                known[name] = there.expand(count)
                filled[name] = torch.where(there, label, torch.zeros_like(label))
        return self.labels(filled, count), known

    def fit_frequencies(self, y: Labels) -> None:
        """Take the frequencies of classes, which weigh them where nobody names one, from labels;
        those that are missing do not count.
        """
        named = y if isinstance(y, Mapping) else {"y": y}
        sizes = [as_numbers(name, value).numel() for name, value in named.items()]
        self._counts = {}
        self._open = {n for n, f in self.factors.items() if isinstance(f, Categorical)}
        self.count_labels(*self.partial_labels(y, max(sizes, default=0)))
        self.settle_frequencies()

    def count_labels(self, labels: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
        """Count classes whose frequencies nobody gave, as objectives meet them in training;
        evaluation mode begins with what was counted.
        """
        for name, label in labels.items():
            factor = self.factors[name]
            if name in self._open and isinstance(factor, Categorical):
                mine = label[known[name]] if name in known else label
                counts = torch.bincount(mine, minlength=factor.classes)
                self._counts[name] = self._counts.get(name, 0) + counts

    def settle_frequencies(self) -> None:
        """Take the frequencies of classes from what was counted."""
        for name, counts in self._counts.items():
            self.factors[name] = Categorical.as_often(counts.tolist())
            if name in self.code.heads:
                self.code.heads[name].factor = self.factors[name]

    def train(self, mode: bool = True) -> Self:
        if not mode:
            self.settle_frequencies()
        return super().train(mode)

    def check_frequencies(self, labels: Collection[str]) -> None:
        """Say once that classes are taken to be equally frequent, where that was never set and
        some are not among the labels.
        """
        unset = [
            name
            for name, factor in self.factors.items()
            if isinstance(factor, Categorical) and factor.probabilities is None
            if name not in labels and factor.classes > 1
        ]
        if unset and not self.training and not self._said:
            self._said = True
            log.warning(
                "the classes of %r are taken to be equally frequent: call fit_frequencies(y), or "
                "give Categorical(..., probabilities=...)",
                unset[0],
            )

    def named(self, y: Labels | None) -> dict[str, Tensor]:
        """Labels of any shape by factor name, checked; none of them for None."""
        if y is None:
            return {}
        if not isinstance(y, Mapping):
            if len(self.factors) != 1:
                names = ", ".join(self.factors)
                remedy = f"y must be a dict with keys {names}" if names else "leave out y"
                raise ValueError(f"the model has {len(self.factors)} factors: {remedy}")
            y = dict.fromkeys(self.factors, y)

        labels = {}
        for name, value in y.items():
            if name not in self.factors:
                known = ", ".join(self.factors) or "none"
                raise ValueError(
                    f"y names a factor {name!r} that the model does not have; it has: {known}"
                )
            labels[name] = self.factors[name].check(as_numbers(name, value).to(self.device))

        return labels

    # ------------------------------------------------------------------------ weights and files

    @property
    def dtype(self) -> torch.dtype:
        """Type of its weights."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.like.device

    @property
    def like(self) -> Tensor:
        """A parameter, or a buffer of a model whose field has none."""
        tensors = chain(self.parameters(), self.buffers())
        found = (tensor for tensor in tensors if tensor.is_floating_point())
        return next(found, torch.empty(0))

    def config(self) -> dict[str, Any]:
        """Arguments that make this model again, as plain values."""
        arguments = {n: v for n, v in self._arguments.items() if n not in self.MACHINE}
        arguments["factors"] = {name: factor_to_config(f) for name, f in self.factors.items()}
        own = arguments["training_tolerance"] is not None
        arguments["tolerance"] = self.tolerance.config()
        arguments["training_tolerance"] = self.policy.config() if own else None
        return pretrained.plain(arguments)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **changes: Any) -> Self:  # noqa: ANN401
        """The model that :meth:`config` described, with fresh weights; ``changes`` are arguments to
        replace.
        """
        arguments = {**config, **changes}
        known = inspect.signature(cls).parameters
        anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
        unknown = [name for name in arguments if name not in known]
        if unknown and not anything:
            raise ValueError(f"{cls.__name__} has no argument {unknown[0]!r}")
        for name in ("tolerance", "training_tolerance"):
            if isinstance(arguments.get(name), Mapping):
                arguments[name] = policy_from_config(arguments[name])
        arguments["factors"] = {
            name: factor_from_config(f) if isinstance(f, dict) else f
            for name, f in (arguments.get("factors") or {}).items()
        }
        return cls(**arguments)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors``."""
        pretrained.save(self, self.config(), Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path, **changes: Any) -> Self:  # noqa: ANN401
        """The model of a folder that :meth:`save_pretrained` wrote, in evaluation mode; arguments
        may be changed, such as ``trace="exact"``, and a field of one's own must be passed again.
        """
        files = pretrained.read_files(Path(folder))
        return pretrained.restore(cls, files, Path(folder), changes)

    def to_bytes(self) -> tuple[bytes, bytes]:
        """What :meth:`save_pretrained` would write into the two files."""
        return pretrained.files_of(self, self.config())

    @classmethod
    def from_bytes(cls, config: bytes, weights: bytes) -> Self:
        """The model of what :meth:`to_bytes` gave, in evaluation mode."""
        return pretrained.restore(cls, (config, weights), Path("this model"), {})


def is_missing(labels: Tensor) -> Tensor:
    """Which labels are not known: those that are NaN, or -1 where they are whole numbers."""
    return labels.isnan() if labels.is_floating_point() else labels == -1


def as_numbers(name: str, value: Label) -> Tensor:
    """Labels as a tensor; of Python's numbers in double precision, so that no digit is lost."""
    if isinstance(value, Tensor):
        return value
    try:
        return torch.from_numpy(np.array(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise ValueError(f"labels of {name!r} must be numbers, got {value!r}") from None


def check_factors(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    """Factors by name, or an error for what is not one."""
    for name, factor in factors.items():
        if not isinstance(factor, Categorical | Real):
            raise ValueError(f"factor {name!r} must be Categorical or Real, got {factor!r}")
    return dict(factors)
