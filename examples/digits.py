"""The model of the package: read digits, find outliers, draw and change them.

python examples/digits.py        # writes outputs/digits.png
"""

from __future__ import annotations

from pathlib import Path

import torch

import infocnf
from infocnf import InfoCNF
from infocnf.evaluation.outliers import auroc, make_outliers
from infocnf.files import write
from infocnf.reports.figures import grid
from infocnf.reports.samples import counterfactual_grid
from infocnf.runs import Run


def main(count: int = 100, out: Path = Path("outputs/digits.png")) -> dict[str, float]:
    """Read test digits in one evaluation of the field; tell them from digits upside down."""
    model, run = infocnf.load("digits"), Run.open("digits")
    assert isinstance(model, InfoCNF)
    raw, labels = run.data().examples("test")
    raw, y = raw[:count], labels["label"][:count]
    x = run.preparation(raw, model.dtype)
    read = model.predict(x, readout="one_step")

    def code_distance(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            code = model.encode(run.preparation(images, model.dtype), tolerance=1e-2)
        return model.code.distance(code.supervised)

    turned = make_outliers(raw, run.preparation.levels)["upside down"]
    area = auroc(code_distance(raw), code_distance(turned))

    firsts = [int((y == digit).nonzero()[0]) for digit in (3, 7)]
    changed = counterfactual_grid(model, run.preparation, raw[firsts], run.facts["classes"], 1e-3)
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, grid(changed))
    return {
        "wrong, %": 100.0 * float((read != y).float().mean()),
        "area under ROC, upside down": area,
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:<30} {value:.3f}")
    print("3 and 7 with every label: outputs/digits.png")
