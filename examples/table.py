"""A table with scikit-learn's tools: classes, densities, strange rows and new ones.

python examples/table.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from infocnf.estimators import InfoCNFClassifier


def main(steps: int = 600) -> dict[str, float]:
    """Fit, predict, score, sample; the figures."""
    x, y = load_wine(return_X_y=True)
    seen, new, seen_y, new_y = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
    flow = InfoCNFClassifier(steps=steps, random_state=0).fit(seen, seen_y)

    # wines whose columns come from different wines: each number usual, together strange
    rng = np.random.default_rng(0)
    mixed = np.stack([rng.permutation(column) for column in new.T], 1)
    scores = -np.concatenate([flow.score_samples(new), flow.score_samples(mixed)])
    truth = np.repeat([0, 1], len(new))

    # new wines of class 2, judged by the model and by their means
    drawn = flow.sample(200, y=2, random_state=0)
    own = seen[seen_y == 2]
    distance = np.abs(drawn.mean(0) - own.mean(0)) / own.std(0)
    return {
        "test error, %": 100.0 * float((flow.predict(new) != new_y).mean()),
        "mean log p(x) of test rows, nats": float(flow.score_samples(new).mean()),
        "area under ROC of mixed rows": float(roc_auc_score(truth, scores)),
        "largest shift of a mean, in deviations": float(distance.max()),
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:<42} {value:.3f}")
