"""What the page does, without the page: every action is a function of a model and its input."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from infocnf.data.images import read_image
from infocnf.errors import InputError
from infocnf.evaluation.likelihood import ReferenceLikelihood, logits_of, score
from infocnf.models import InfoCNF
from infocnf.models.code import Code
from infocnf.reports.figures import BLUE, GREY, RED, grid, png, tidy
from infocnf.reports.samples import Grid, class_grid, counterfactual_grid, draw_samples, main_factor
from infocnf.runs import Run
from infocnf.tolerances import Fixed

__all__ = ["LARGEST_PIXELS", "DemoSession", "Reading"]

LARGEST_PIXELS = 16_000_000
INK = 16  # opacity, of 255, from which a pixel of a drawing counts as drawn
MARGIN = 0.08  # of the frame around a drawing, on each side


@dataclass(frozen=True)
class Reading:
    """What a model reads off an image.

    Arguments:
        seen: The image as the model sees it, a PNG.
        probabilities: By class.
        words: The rest in words.
        picture: Its likelihood among those of test images, a PNG; None where none was evaluated.
        blocks: Evaluations and tolerance of each block.
    """

    seen: bytes
    probabilities: dict[str, float]
    words: str
    picture: bytes | None
    blocks: list[list[str]] = field(default_factory=list)


class DemoSession:
    """A model of images, ready to be played with.

    Arguments:
        run: Its run directory.
        tolerance: Tolerance of the solver.
    """

    def __init__(self, run: Run, tolerance: float = 1e-4) -> None:
        if run.is_series or run.preparation.levels < 2:
            raise InputError(f"{run.folder} is no model of images, which is what the page shows")
        self.run, self.tolerance = run, tolerance
        self.model: InfoCNF = run.model()
        self.preparation = run.preparation
        self.reference = ReferenceLikelihood.told(run.evaluation)
        self.label = main_factor(self.model)
        self.classes: list[str] = run.facts["classes"].get(self.label, []) if self.label else []

    # ------------------------------------------------------------------------------- images in

    def from_drawing(self, strokes: np.ndarray) -> Tensor:
        """An image of the model's size from a drawing ``(height, width, 4)``, whose opacity is the
        ink: cut out, centred in a frame of the model's shape, white on black, and as bright as the
        data's whatever the stroke's width.
        """
        ink = np.asarray(strokes)[..., 3].astype(np.float64)
        rows, columns = np.nonzero(ink > INK)
        if not len(rows):
            raise InputError("there is nothing drawn yet: draw first")
        cut = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        channels, *sides = self.model.shape
        unit = max(length / side for length, side in zip(cut.shape, sides, strict=True))
        high, wide = (round(unit * side * (1.0 + 2.0 * MARGIN)) for side in sides)
        frame = np.zeros((high, wide))
        top, left = (high - cut.shape[0]) // 2, (wide - cut.shape[1]) // 2
        frame[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
        small = self.resized(Image.fromarray(frame.astype(np.uint8)))
        return self.to_levels(np.tile(small * (255.0 / max(small.max(), 1.0)), (channels, 1, 1)))

    def from_upload(self, content: bytes) -> Tensor:
        """An image of the model's size from the bytes of a file, read as :func:`read_image` reads
        those of the data.
        """
        try:
            picture = Image.open(io.BytesIO(content))
            if picture.width * picture.height > LARGEST_PIXELS:
                raise InputError(
                    f"the image has {picture.width}x{picture.height} pixels: bring it below "
                    f"{LARGEST_PIXELS // 10**6} million"
                )
            picture.load()
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError, SyntaxError):
            raise InputError("this file is no image: give a PNG or JPEG") from None
        channels, height, width = self.model.shape
        return self.to_levels(read_image(io.BytesIO(content), channels, (width, height)))

    def resized(self, picture: Image.Image) -> np.ndarray:
        """Grey levels ``(1, height, width)`` of the model's size, by averages over areas."""
        _, height, width = self.model.shape
        small = picture.resize((width, height), Image.Resampling.BOX)
        return np.asarray(small, dtype=np.float64)[None]

    def to_levels(self, pixels: np.ndarray) -> Tensor:
        """Whole grey levels ``(1, channels, height, width)`` of those from 0 to 255."""
        levels = np.rint(pixels / 255.0 * (self.preparation.levels - 1)).astype(np.int64)
        return torch.from_numpy(levels).unsqueeze(0)

    # --------------------------------------------------------------------------------- actions

    def recognise(self, image: Tensor) -> Reading:
        """Class probabilities, likelihood and cost of one image of grey levels."""
        prepared = self.preparation(image, self.model.dtype)
        log_scale, policy = self.preparation.log_scale, Fixed(self.tolerance)
        scores = score(self.model, prepared, {}, policy, log_scale, error=True)
        probabilities: dict[str, float] = {}
        if self.label is not None:
            logits = logits_of(scores)
            if self.model.readout == "one_step":
                with torch.no_grad():
                    logits = self.model.logits(prepared, readout="one_step")
            found = self.model.factors[self.label].distribution(logits[self.label])
            assert isinstance(found, Tensor)
            probabilities = dict(zip(self.classes, found[0].tolist(), strict=True))
        log_prob = scores["marginal"][0]
        error = float(scores["error marginal"][0])
        words = f"log p(x) = {float(log_prob):.{digits_of(error)}f} ± {error:.1g} nats"
        picture = None
        if self.reference is not None:
            percent = float(self.reference.percentile(scores["marginal"])[0])
            words += f"; {percent:.0f} % of test images are less likely"
            if percent < 1.0:
                words += ". The model has hardly seen anything like it: do not trust the class"
            picture = among(self.reference, float(log_prob))
        blocks = [
            [str(i), str(int(count)), f"{tolerance:.0e}"]
            for i, (count, tolerance) in enumerate(
                zip(*(scores[n][0].tolist() for n in ("evaluations", "tolerances")), strict=True)
            )
        ]
        return Reading(self.picture(image), probabilities, words, picture, blocks)

    def samples(self, label: str, temperature: float, seed: int, count: int = 24) -> bytes:
        """Samples of one class, or of all in turn for any other word, as a PNG."""
        if not 0.0 <= temperature <= 2.0:
            raise InputError(f"the temperature must be between 0 and 2, got {temperature}")
        chosen = self.classes.index(label) if label in self.classes else None
        number = count if chosen is not None or not self.classes else 4 * len(self.classes)
        drawn = draw_samples(
            self.model,
            self.preparation,
            number,
            chosen,
            temperature=temperature,
            tolerance=self.tolerance,
            seed=int(seed),
        )
        names = self.classes if chosen is None else []
        return grid(class_grid(drawn, names, self.preparation.levels))

    def counterfactuals(self, image: Tensor) -> bytes:
        """The same code z_u with every label, as a PNG."""
        if self.label is None:
            raise InputError("this model knows no labels: there is nothing to change")
        return grid(
            counterfactual_grid(self.model, self.preparation, image, {self.label: self.classes})
        )

    def walk(self, label: str, first: int, second: int, steps: int = 9) -> bytes:
        """A path between two draws of z_u, at one label, as a PNG: along a great circle, on which
        codes of many dimensions lie.
        """
        number = self.classes.index(label) if label in self.classes else 0
        (z_y, one), (_, two) = (self.draw_code(number, seed) for seed in (first, second))
        z_u = torch.cat([arc(one, two, share) for share in torch.linspace(0.0, 1.0, steps)])
        with torch.no_grad():
            codes = Code(z_y.expand(steps, -1), z_u)
            x = self.model.visible(self.model.decode(codes, tolerance=self.tolerance))
        return self.picture(self.preparation.restore(x))

    def draw_code(self, number: int, seed: int) -> tuple[Tensor, Tensor]:
        """The code of a class, and one that knows none, ``(1, size)`` each."""
        generator = torch.Generator().manual_seed(int(seed))
        labels = {self.label: number} if self.label else None
        code = self.model.draw_code(1, labels, generator=generator)
        return code.supervised, code.unsupervised

    def picture(self, images: Tensor) -> bytes:
        """Images of grey levels ``(count, channels, height, width)`` in a row, as a PNG."""
        values = images.double() / max(self.preparation.levels - 1, 1)
        return grid(Grid(values.unsqueeze(0)))


def digits_of(error: float) -> int:
    """Decimals that an error leaves a meaning.

    >>> digits_of(0.004), digits_of(0.3), digits_of(2.0)
    (3, 1, 0)
    """
    return min(max(math.ceil(-math.log10(max(error, 1e-9))), 0), 6)


def arc(one: Tensor, two: Tensor, share: Tensor) -> Tensor:
    """A point between two vectors, on the great circle through them."""
    cosine = (one * two).sum() / (one.norm() * two.norm()).clamp(min=1e-12)
    angle = torch.arccos(cosine.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
    return (((1.0 - share) * angle).sin() * one + (share * angle).sin() * two) / angle.sin()


def among(reference: ReferenceLikelihood, log_prob: float) -> bytes:
    """Where a likelihood lies among those of test images."""
    figure = Figure(figsize=(4.6, 1.9), layout="constrained")
    axes = figure.subplots()
    values = np.array(reference.quantiles)
    axes.hist(values, bins=24, color=GREY, alpha=0.6)
    low, high = values[0], values[-1]
    shown = min(max(log_prob, low - 0.4 * (high - low)), high + 0.4 * (high - low))
    axes.axvline(shown, color=RED if log_prob < values[1] else BLUE, lw=2.5)
    axes.set_yticks([])
    tidy(axes, "among test images", "log p(x), nats", "")
    return png(figure)
