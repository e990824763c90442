"""What unlabelled examples are worth: ``python -m benchmarks.labels`` trains on the digits with 100
labels, with and without the other images, and with all labels, and writes
``docs/results/labels.md``.

Runs that are there already are kept, so the command can be interrupted and given again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC

from benchmarks.peers.measure import machine, publish
from infocnf.data import load_data
from infocnf.experiments.analysis import summary
from infocnf.experiments.declaration import Recipe
from infocnf.experiments.runner import ExperimentRunner
from infocnf.runs import Run

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "labels.md"
SEEDS = (0, 1, 2)
LABELS = 100

HEAD = f"""# Few labels

Made by `python -m benchmarks.labels`: the 8x8 digits with {LABELS} labels, ten of each class, of
1,147 training images. Each seed divides the images anew, so that other images keep their labels;
150 more labelled images choose the epoch and what is read, 500 are the test set. Mean and standard
deviation over {len(SEEDS)} seeds. All flows take about as many steps: 60 epochs of matching and
one of maximum likelihood with 1,147 images, ten times as many epochs with 100.
`matching.beta=0.05` for few labels and `matching.pseudo_label_threshold=0.9` were chosen on other
divisions (seeds 10 to 12). Scikit-learn's estimators (a support vector machine at its defaults,
label spreading over nearest neighbours) have the same images; with 250 labels they also learn
those of the 150, which the flows do not train on.
"""

FEW = (f"data.labelled={LABELS}", "matching.beta=0.05")
ARMS = {
    "InfoCNF, all labels": (),
    "InfoCNF, 100 labels and the other images": (*FEW, "matching.pseudo_label_threshold=0.9"),
    "InfoCNF, 100 labels alone": (
        *FEW,
        "data.unlabelled=false",
        "matching.epochs=600",
        "training.epochs=10",
    ),
}
FIGURES = {
    "one_step": ("error % in one step", ".2f"),
    "error_percent": ("through the flow", ".2f"),
    "calibration_error": ("calibration error", ".3f"),
    "bits_per_dim": ("bits/dim", ".3f"),
    "bits_per_dim_marginal": ("bits/dim, label unknown", ".3f"),
}


def recipe(settings: tuple[str, ...], seed: int) -> Recipe:
    """A run of an arm."""
    seeds = (f"data.seed={seed}", f"training.seed={seed}", "trainer.threads=1")
    return Recipe("digits", (*settings, *seeds))


def peers(seed: int) -> dict[str, float]:
    """Errors of scikit-learn's classifiers on the same images, in percent."""
    data = load_data("digits", validation=150, test=500, seed=seed, labelled=LABELS)
    (x, y), (more, known), (test, truth) = [
        (x.flatten(1).double().numpy(), labels["label"].numpy())
        for x, labels in (data.examples(part) for part in ("train", "validation", "test"))
    ]
    found = {}
    both = (np.concatenate([x, more]), np.concatenate([y, known]))
    for count, (images, labels) in ((100, (x, y)), (250, both)):
        there = labels >= 0
        alone = SVC().fit(images[there], labels[there])
        spread = LabelSpreading(kernel="knn").fit(images, labels)
        found[f"support vector machine, {count} labels alone"] = alone
        found[f"label spreading, {count} labels and the other images"] = spread
    return {n: 100.0 * float((model.predict(test) != truth).mean()) for n, model in found.items()}


def text(values: list[float], form: str) -> str:
    found = summary(values)
    return "" if found is None else found.text(form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "labels")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    runner = ExperimentRunner(arguments.out, jobs=arguments.jobs)
    recipes = {name: [recipe(own, seed) for seed in SEEDS] for name, own in ARMS.items()}
    runner.make(one for mine in recipes.values() for one in mine)

    lines = [
        "| | " + " | ".join(title for title, _ in FIGURES.values()) + " |",
        "|" + "---|" * (len(FIGURES) + 1),
    ]
    for name, mine in recipes.items():
        found = [Run.open(runner.folder_of(one)).read_json("evaluation.json") for one in mine]
        found = [{**one, "one_step": one["one_step"]["error_percent"]} for one in found]
        cells = [text([one[key] for one in found], form) for key, (_, form) in FIGURES.items()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    others = [peers(seed) for seed in SEEDS]
    for name in others[0]:
        error = text([one[name] for one in others], ".2f")
        lines.append(f"| {name} | {error} |" + " |" * (len(FIGURES) - 1))
    publish(RESULT, [HEAD, machine(), "\n".join(lines)])


if __name__ == "__main__":
    main()
