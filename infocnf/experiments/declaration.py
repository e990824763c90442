"""What a result of the paper is made of: arms that are trained, metrics that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from infocnf.errors import InputError
from infocnf.runs import Run, read_config
from infocnf.runs.config import Config

if TYPE_CHECKING:
    from infocnf.experiments.analysis import Results

__all__ = ["Arm", "Base", "Column", "Experiment", "Probe", "Recipe", "Scale"]


@dataclass(frozen=True)
class Base:
    """Data, model and schedule that arms share: a preset and changes to it."""

    preset: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scale:
    """How large everything is; arms and metrics are the same at every scale.

    Arguments:
        name: ``laptop``, ``paper`` or ``tiny``.
        seeds: Seeds of each arm.
        bases: By role: ``small`` and ``large`` batches, ``mnist``, ``density``, ``spirals``.
        blocks: Blocks per stack of the larger model, of which the others have half.
        rate: Learning rate of a large batch without the paper's larger one.
        batches: Sizes of the batches of which tolerances are learned, in evaluation.
        points: Points of the sum that integrates a density.
    """

    name: str
    seeds: tuple[int, ...]
    bases: Mapping[str, Base]
    blocks: int
    rate: float
    batches: tuple[int, ...]
    points: int


@dataclass(frozen=True)
class Recipe:
    """A run: what ``infocnf train`` is given."""

    preset: str
    settings: tuple[str, ...]

    @property
    def config(self) -> Config:
        """The configuration."""
        return read_config(self.preset, self.settings)

    def command(self, folder: str) -> str:
        """As a person would type it."""
        given = " ".join(f"--set '{setting}'" for setting in self.settings)
        return f"infocnf train {self.preset} {given} --out {folder}"


@dataclass(frozen=True)
class Arm:
    """One of the things that are compared.

    Arguments:
        name: Name for people.
        base: Role of what it is trained on.
        settings: What is special about it; a function where that depends on the scale.
        paper: The paper's numbers as printed, by figure.
        reference: What the reference's own logs say, where they differ.
        matches: Another arm of the experiment, whose mean tolerance this one has as a fixed one.
    """

    name: str
    base: str
    settings: tuple[str, ...] | Callable[[Scale], tuple[str, ...]] = ()
    paper: Mapping[str, str] = field(default_factory=dict)
    reference: Mapping[str, str] = field(default_factory=dict)
    matches: str | None = None

    def recipe(self, scale: Scale, seed: int, tolerance: float | None = None) -> Recipe:
        """Its run of a seed; an arm that matches another one is told the tolerance."""
        base = scale.bases[self.base]
        own = self.settings(scale) if callable(self.settings) else self.settings
        found = () if tolerance is None else (f"tolerance={tolerance:.2g}",)
        return Recipe(
            base.preset,
            (*base.settings, *own, *found, f"training.seed={seed}", "trainer.threads=1"),
        )


@dataclass(frozen=True)
class Column:
    """A metric of a table.

    Arguments:
        key: Name among the metrics of a result.
        title: Head of the column.
        form: Format of its numbers.
    """

    key: str
    title: str
    form: str = ".2f"


@dataclass(frozen=True)
class Probe:
    """Something more that is measured with a trained model.

    Arguments:
        name: Name of its file.
        measure: What it measures, as plain values.
    """

    name: str
    measure: Callable[[Run, Scale], dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A result of the paper.

    Arguments:
        name: Name of the command.
        title: What it shows.
        claim: What the paper says, in one sentence.
        arms: What is compared.
        columns: Figures of the table; a function where they depend on the scale.
        draw: The pictures, by file name.
        probes: What else is measured.
        caption: What else one must know to read the table.
    """

    name: str
    title: str
    claim: str
    arms: tuple[Arm, ...]
    columns: tuple[Column, ...] | Callable[[Scale], tuple[Column, ...]]
    draw: Callable[[Results], dict[str, Figure]]
    probes: Sequence[Probe] = ()
    caption: str = ""

    def table(self, scale: Scale) -> tuple[Column, ...]:
        """Figures of the table at a scale."""
        return self.columns(scale) if callable(self.columns) else self.columns

    def arm(self, name: str) -> Arm:
        """An arm by its name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise InputError(f"{self.name} has no arm called {name!r}")
