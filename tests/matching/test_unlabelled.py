"""Examples without a label have a likelihood, and are matched with what the model believes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from infocnf import Categorical, InfoCNF, Real
from infocnf.data import load_data
from infocnf.matching import matching_objective
from infocnf.matching.loss import guess
from infocnf.objectives import likelihood_objective
from infocnf.random import combine_seeds
from infocnf.runs.build import build_data, build_model
from infocnf.training import begin
from infocnf.training.stages import Plan
from tests.runs.tiny import rows, tiny


def make(**arguments: object) -> InfoCNF:
    factors = {"kind": Categorical(3, (0.5, 0.3, 0.2)), "size": Real(5.0, 2.0)}
    model = InfoCNF((6,), factors, supervised=1.0, hidden=(8,), blocks=1, **arguments)  # type: ignore[arg-type]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def test_unlabelled_samples_have_the_marginal_likelihood_and_no_cross_entropy() -> None:
    model, x = make().double().eval(), torch.randn(4, 6, dtype=torch.float64)
    y = {"kind": torch.tensor([1, -1, 2, -1]), "size": torch.tensor([4.0, 6.0, np.nan, np.nan])}
    found = likelihood_objective(model, x, y, tolerance=1e-8)
    for i in range(4):
        mine = {n: v[i : i + 1] for n, v in y.items() if not (v[i] == -1 or v[i].isnan())}
        alone = likelihood_objective(model, x[i : i + 1], mine, tolerance=1e-8)
        torch.testing.assert_close(found.log_prob[i], alone.log_prob[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(found.cross_entropy[i], alone.cross_entropy[0])
    with pytest.raises(ValueError, match="labels must lie in"):
        model.log_prob(x, y)
    with pytest.raises(ValueError, match="the model has 2 factors: y must be a dict"):
        likelihood_objective(model, x, torch.zeros(4, dtype=torch.long))


def test_guesses_are_drawn_from_what_the_model_believes() -> None:
    factors = {"kind": Categorical(3, (0.5, 0.3, 0.2))}
    model = InfoCNF((4,), factors, architecture="residual", hidden=(8,), separation=1.0)
    count = 20_000
    state = torch.randn(1, 4).expand(count, -1)
    labels = {"kind": torch.zeros(count, dtype=torch.long)}
    known = {"kind": torch.arange(count) < 100}
    seeds = combine_seeds(0, torch.arange(count))
    drawn = guess(model, state, labels, known, seeds)[0]["kind"]
    assert (drawn[:100] == 0).all()
    believed = model.predict_proba(state[:1], readout="one_step")[0].detach()
    shares = torch.bincount(drawn[100:], minlength=3) / (count - 100)
    torch.testing.assert_close(shares, believed, rtol=0, atol=0.015)


def test_a_guess_is_no_lesson() -> None:
    factors = {"kind": Categorical(3)}
    model = InfoCNF((4,), factors, architecture="residual", hidden=(8,), separation=1.0).train()
    x, seeds = torch.randn(6, 4), combine_seeds(1, torch.arange(6))
    found = matching_objective(model, x, torch.tensor([0, -1, 2, -1, 1, -1]), seeds=seeds)
    assert found.read.tolist() == [0, 2, 4] and len(found.losses) == 6
    whole = matching_objective(model, x, torch.tensor([0, 1, 2, 0, 1, 2]), seeds=seeds)
    torch.testing.assert_close(found.losses[::2], whole.losses[::2])


def test_some_training_examples_keep_their_labels() -> None:
    data = load_data("digits", validation=100, test=100, labelled=50)
    _, labels = data.examples("train")
    kept = labels["label"][labels["label"] >= 0]
    assert torch.bincount(kept).tolist() == [5] * 10
    for part in ("validation", "test"):
        assert (data.examples(part)[1]["label"] >= 0).all()
    whole = load_data("digits", validation=100, test=100)
    torch.testing.assert_close(data.examples("train")[0], whole.examples("train")[0])
    few = load_data("digits", validation=100, test=100, labelled=50, unlabelled=False)
    assert len(few.parts["train"]) == 50 and set(few.parts["train"]) <= set(whole.parts["train"])
    factor = data.factors["label"]
    assert isinstance(factor, Categorical) and factor.classes == 10


def test_rows_of_a_table_without_a_label_train_and_do_not_test(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    lines = [f"{i},{i % 7},{'' if i % 3 else i % 2}" for i in range(60)]
    path.write_text("\n".join(["a,b,label", *lines]))
    data = load_data(path=path, validation=5, test=5)
    assert data.raw.classes == {"label": ("0", "1")}
    assert (data.raw.labels["label"] == -1).sum() == 40
    for part in ("validation", "test"):
        assert (data.examples(part)[1]["label"] >= 0).all()
    assert len(data.parts["train"]) == 50


@pytest.mark.parametrize("preset", ["digits-likelihood", "digits-matching"])
def test_a_run_with_few_labels(preset: str, tmp_path: Path) -> None:
    matching = ["matching.epochs=1", "matching.batch_size=16", "matching.refit=20"]
    given = ["data.labelled=20", *(matching if "matching" in preset else [])]
    run = begin(tiny(*given, preset=preset), tmp_path / "run")
    last = rows(run.folder)[-1]
    assert 0.0 <= float(last["train_error_percent"]) <= 100.0
    assert np.isfinite(float(last["validation_bits_per_dim"]))


def test_a_confident_guess_is_a_lesson() -> None:
    factors = {"kind": Categorical(3)}
    model = InfoCNF((4,), factors, architecture="residual", hidden=(8,), separation=1.0).train()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, seeds = torch.randn(200, 4), combine_seeds(1, torch.arange(200))
    y = torch.full((200,), -1)
    y[:50] = 2
    believed = model.predict_proba(x, readout="one_step").detach().max(1)
    enough = float(believed.values.double().quantile(0.3))
    sure = (believed.values >= enough) | (y >= 0)
    assert 100 < sure.sum() < 190 and enough < 1.0
    found = matching_objective(model, x, y, seeds=seeds, pseudo_label_threshold=enough)
    assert torch.equal(found.read, sure.nonzero().flatten())
    taught = torch.where(y >= 0, y, believed.indices)
    whole = matching_objective(model, x, taught, seeds=seeds)
    torch.testing.assert_close(found.losses[sure], whole.losses[sure])


def test_few_labels_weigh_together_as_much_as_all_would() -> None:
    config = tiny(
        "data.labelled=20", "matching.pseudo_label_threshold=1.0", preset="digits-matching"
    )
    data = build_data(config)
    x, labels = data.examples("train")
    plan = Plan(config, len(x), data.preparation, 20 / len(x))
    prepared = data.preparation(x, torch.float32)
    found = plan.matching(build_model(config, data).eval(), prepared, labels)  # type: ignore[arg-type]
    assert len(found.read) == 20 < len(x)
    weighed = (found.losses - found.error)[found.read] - found.end_error
    mean = config.matching.beta * found.cross_entropy.mean()
    torch.testing.assert_close(weighed.sum() / len(x), mean, rtol=1e-3, atol=0)


def test_guesses_do_not_depend_on_what_else_a_batch_lacks() -> None:
    model, x = make(architecture="residual", separation=1.0).train(), torch.randn(40, 6)
    y = {"kind": torch.arange(40) % 3, "size": torch.linspace(0.0, 5.0, 40)}
    y["kind"][:20] = -1
    y["size"][10:30] = np.nan
    seeds = combine_seeds(1, torch.arange(40))
    whole = matching_objective(model, x, y, seeds=seeds).losses
    pieces = [
        matching_objective(model, x[i], {n: v[i] for n, v in y.items()}, seeds=seeds[i]).losses
        for i in torch.arange(40).split(10)
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-4, atol=1e-4)
