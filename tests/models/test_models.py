"""The model: counts of the paper, places of the code, predictions, samples, and files."""

from __future__ import annotations

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from infocnf import Categorical, InfoCNF, LatentODE, Real, load
from infocnf.models.code import partition
from infocnf.objectives import likelihood_objective
from infocnf.ode import SolveError
from infocnf.tolerances import Fixed, PerBlock

DIGIT = {"digit": Categorical(10)}


def small(**changes: object) -> InfoCNF:
    """A small image model whose priors and classifiers are not zero."""
    arguments: dict[str, object] = {
        "shape": (1, 8, 8),
        "factors": DIGIT,
        "hidden": (6, 6),
        **changes,
    }
    model = InfoCNF(**arguments)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.code.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize(
    ("supervised", "count"), [(0.5, 1_408_030), (1.0, 1_457_182), (0.0, 1_358_868)]
)
def test_parameter_counts_are_those_of_the_papers_cifar_10_models(
    supervised: float, count: int
) -> None:
    model = InfoCNF((3, 32, 32), DIGIT, supervised)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert len(model.flow.blocks) == 14


def test_all_labels_start_as_a_standard_normal() -> None:
    model, x = InfoCNF((1, 4, 4), DIGIT, hidden=(4,)).eval(), torch.rand(3, 1, 4, 4)
    with torch.no_grad():
        assert torch.equal(model.log_prob(x, 1), model.log_prob(x, 7))
        torch.testing.assert_close(model.predict_proba(x), torch.full((3, 10), 0.1))


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("first_scale", [0, 1, 2, 3]),
        ("last_scale", [4, 5, 6, 7]),
        ("every_scale", [0, 1, 4, 6]),
        ([6, 1], [6, 1]),
    ],
)
def test_the_place_of_the_supervised_code(place: str | list[int], expected: list[int]) -> None:
    assert partition([4, 2, 2], 0.5, place) == expected


def test_half_of_the_code_in_the_first_scale_is_what_it_factored_out() -> None:
    model = small()
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        code = model.encode(x)
        whole, _ = model.flow(x, model.traversal(1e-5))
    torch.testing.assert_close(code.supervised, whole[:, :32], rtol=0, atol=1e-4)
    assert model.flow.sizes == (32, 32)


@pytest.mark.parametrize("place", ["first_scale", "last_scale", "every_scale", [5, 0, 63]])
def test_splitting_and_merging_a_code_are_inverse(place: str | list[int]) -> None:
    model, z = small(place=place), torch.randn(2, 64)
    assert torch.equal(model.code.merge(*model.code.split(z)), z)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"supervised": 1.0},
        {"supervised": 0.0},
        {"place": "every_scale"},
        {"shape": (5,), "place": "last_scale"},
        {"shape": (1, 4, 4), "scales": 2, "factors": {"digit": Categorical(10), "angle": Real()}},
    ],
)
def test_encode_then_decode_returns_the_samples(changes: dict[str, object]) -> None:
    model = small(**changes)
    x = torch.rand(3, *model.shape)
    with torch.no_grad():
        code = model.encode(x, tolerance=1e-6)
        torch.testing.assert_close(model.decode(code, tolerance=1e-6), x, rtol=0, atol=1e-4)
    assert code.supervised.shape[1] + code.unsupervised.shape[1] == model.dimensions
    assert code.stats.forward.shape == (3,)


def test_samples_in_given_steps_come_nearer_as_the_midpoint_rule_does() -> None:
    model = small(shape=(5,)).double()
    code = model.draw_code(4, 3)
    with torch.no_grad():
        exact = model.decode(code, tolerance=1e-10)
        errors = [
            float((model.decode(code, steps=steps) - exact).abs().max()) for steps in (8, 16, 32)
        ]
    assert errors[0] > 1e-9
    for coarse, fine in pairwise(errors):
        assert 3.3 < coarse / fine < 4.8  # a quarter, for half the step


def test_evaluation_does_not_depend_on_the_batch_or_on_what_was_solved_before() -> None:
    model, x = small(), torch.rand(6, 1, 8, 8)
    y = torch.arange(6)
    with torch.no_grad():
        whole, code = model.log_prob(x, y), model.encode(x)
        for members in ([0], [5, 2], [3, 1, 0, 4]):
            torch.testing.assert_close(
                model.log_prob(x[members], y[members]), whole[members], rtol=0, atol=1e-6
            )
            assert torch.equal(model.encode(x[members]).stats.forward, code.stats.forward[members])
    model.train()
    for _ in range(2):
        model.log_prob(torch.rand(4, 1, 8, 8), 3).mean().backward()
    with torch.no_grad():
        assert torch.equal(model.eval().log_prob(x, y), whole)


def test_probes_are_random_in_training_and_from_a_generator() -> None:
    model, x = small(trace="hutchinson"), torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        fixed = model.log_prob(x)
        drawn = [
            model.log_prob(x, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
        ]
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.allclose(drawn[0], drawn[2]) and not torch.allclose(drawn[0], fixed)
        model.train()
        assert not torch.allclose(model.log_prob(x), model.log_prob(x))


def test_a_tolerance_given_with_the_call_overrides_the_models_policy() -> None:
    model, x = small(tolerance=[1e-3] * 6), torch.rand(3, 1, 8, 8)
    assert isinstance(model.policy, PerBlock)

    def cost(tolerance: object) -> int:
        with torch.no_grad():
            return int(model.encode(x, tolerance=tolerance).stats.forward.sum())

    assert cost(None) == cost(1e-3) == cost(Fixed(1e-3)) == cost([1e-3] * 6)
    assert cost(1e-7) > cost(1e-5) > cost(None)
    assert cost(torch.tensor([1e-3, 1e-7, 1e-3])) > cost(1e-3)
    model.train()  # tolerances per sample ask for steps per sample, in training too
    assert model.encode(x, tolerance=torch.tensor([1e-3, 1e-7, 1e-3])).stats.forward.shape == (3,)


def test_predictions_are_read_off_the_supervised_code_alone() -> None:
    model, x = small(), torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        code = model.encode(x, log_det=False)
        moved = type(code)(code.supervised, code.unsupervised + 1.0)
        other = model.decode(moved, tolerance=1e-8)
        torch.testing.assert_close(model.predict_proba(other, 1e-8), model.predict_proba(x, 1e-8))
    probabilities = model.predict_proba(x)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(4))
    assert torch.equal(model.predict(x), probabilities.argmax(1))


def test_several_factors_of_both_kinds_are_dicts() -> None:
    model = small(
        shape=(6,), factors={"digit": Categorical(3), "angle": Real(10.0, 2.0)}, supervised=0.7
    )
    x = torch.randn(4, 6)
    predicted, distribution = model.predict(x), model.predict_proba(x)

    assert predicted["digit"].shape == (4,) and predicted["angle"].shape == (4,)
    assert distribution["digit"].shape == (4, 3)
    torch.testing.assert_close(distribution["angle"].mean, predicted["angle"])
    assert model.sample(5).shape == (5, 6)
    assert model.sample(5, {"angle": 9.0}).shape == (5, 6)
    assert model.log_prob(x, {"digit": 2, "angle": torch.randn(4)}).shape == (4,)


def test_samples_have_the_statistics_of_their_label_and_temperature() -> None:
    model = small(shape=(4,), factors={"side": Categorical(2)}, supervised=0.5, hidden=(4,))
    with torch.no_grad():
        for parameter in model.flow.parameters():
            parameter.zero_()  # the identity: samples are codes
        model.code.heads["side"].prior.weight.copy_(
            torch.tensor([[-3.0, 3.0], [0, 0], [0, 0], [0, 0]])
        )
        model.code.heads["side"].prior.bias.zero_()
    generator = torch.Generator().manual_seed(0)
    left = model.sample(4000, 0, generator=generator)
    cold = model.sample(4000, 1, temperature=0.5, generator=generator)
    mixed = model.sample(4000, generator=generator)

    assert left[:, 0].mean().item() == pytest.approx(-3.0, abs=0.06)
    assert cold[:, 0].mean().item() == pytest.approx(3.0, abs=0.06)
    assert cold.std(0).mean().item() == pytest.approx(0.5, abs=0.03)
    assert (mixed[:, 0] > 0).double().mean().item() == pytest.approx(0.5, abs=0.03)
    assert torch.equal(
        *(model.sample(3, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    )


def test_a_counterfactual_keeps_the_unsupervised_code_and_its_own_label_changes_nothing() -> None:
    model, x = small(), torch.rand(5, 1, 8, 8)
    own = model.predict(x)
    torch.testing.assert_close(model.counterfactual(x, own, tolerance=1e-7), x, rtol=0, atol=1e-5)

    given, wanted = torch.tensor([0, 1, 2, 3, 4]), 7
    other = model.counterfactual(x, wanted, given=given, tolerance=1e-8)
    with torch.no_grad():
        before, after = (model.encode(images, tolerance=1e-8) for images in (x, other))
    torch.testing.assert_close(after.unsupervised, before.unsupervised, rtol=0, atol=1e-5)
    old, new = ({"digit": label} for label in (given, torch.full((5,), wanted)))
    torch.testing.assert_close(
        model.code.to_standard_normal(after.supervised, new),
        model.code.to_standard_normal(before.supervised, old),
    )
    assert not torch.allclose(after.supervised, before.supervised)


def test_a_model_with_a_label_is_a_torch_distribution() -> None:
    model, x = small(), torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        one = model(4)
        assert one.batch_shape == () and one.event_shape == (1, 8, 8)
        assert one.sample((5,)).shape == (5, 1, 8, 8) and one.sample().shape == (1, 8, 8)
        torch.testing.assert_close(one.log_prob(x), model.log_prob(x, 4))

        several = model(torch.tensor([1, 2, 3]))
        assert several.batch_shape == (3,)
        assert several.sample((2,)).shape == (2, 3, 1, 8, 8)
        torch.testing.assert_close(several.log_prob(x), model.log_prob(x, torch.tensor([1, 2, 3])))
        spread = several.log_prob(x[:1].unsqueeze(1).expand(2, 3, 1, 8, 8))
        assert spread.shape == (2, 3)
        torch.testing.assert_close(model().log_prob(x), model.log_prob(x))
        wider = one.expand((3,))
        assert wider.batch_shape == (3,)
        torch.testing.assert_close(wider.log_prob(x), one.log_prob(x))


def test_an_unconditional_flow_needs_no_labels_and_reads_none() -> None:
    model, x = small(factors=None), torch.rand(2, 1, 8, 8)
    assert model.log_prob(x).shape == (2,) and model.sample(3).shape == (3, 1, 8, 8)
    with pytest.raises(ValueError, match="no supervised code"):
        model.predict(x)
    cnf = small(supervised=0.0)
    with torch.no_grad():
        assert torch.equal(cnf.log_prob(x, 3), cnf.log_prob(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_gives_the_same_likelihood_bit_for_bit(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    factors = {"digit": Categorical(10, (0.19, *[0.09] * 9)), "angle": Real(1.0, 2.0)}
    model = small(factors=factors, place="every_scale", tolerance=[1e-4] * 6, alpha=0.05).to(dtype)
    x = torch.rand(3, 1, 8, 8, dtype=dtype)
    model.save_pretrained(tmp_path / "run" / "model")

    assert sorted(path.name for path in (tmp_path / "run" / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    with torch.no_grad():
        for again in (load(tmp_path / "run"), load(tmp_path / "run" / "model")):
            assert torch.equal(again.log_prob(x, {"digit": 3}), model.log_prob(x, {"digit": 3}))
            assert again.config() == model.config() and not again.training


def test_numbers_of_numpy_and_pytorch_are_saved_and_live_settings_too(tmp_path: Path) -> None:
    model = InfoCNF(
        torch.zeros(4).shape,
        {"type": Real(torch.tensor(1.0), np.float32(2.0)), "values": Categorical(np.int64(3))},  # type: ignore[arg-type]
        blocks=np.int64(2),  # type: ignore[arg-type]
        place=np.array([3, 0]),  # type: ignore[arg-type]
        hidden=(4,),
    )
    model.gradient = "adjoint"
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.gradient == "adjoint" and again.config() == model.config()


def test_a_folder_that_is_a_model_is_loaded_before_one_inside_it(tmp_path: Path) -> None:
    InfoCNF((4,), hidden=(4,)).save_pretrained(tmp_path)
    InfoCNF((5,), hidden=(4,)).save_pretrained(tmp_path / "model")
    assert load(tmp_path).shape == (4,)


def test_what_is_shown_of_images_lies_between_black_and_white() -> None:
    model = small(alpha=0.05)
    assert (
        0.0
        <= model.sample(50, temperature=3.0).min()
        <= model.sample(50, temperature=3.0).max()
        <= 1.0
    )
    assert model.log_prob(model.sample(3)).isfinite().all()


def test_an_empty_batch_has_an_empty_answer() -> None:
    model = small()
    assert model.log_prob(torch.rand(0, 1, 8, 8)).shape == (0,)
    assert model.sample(0).shape == (0, 1, 8, 8) and model.predict(
        torch.rand(0, 1, 8, 8)
    ).shape == (0,)


def test_labels_may_be_any_kind_of_whole_number() -> None:
    model, x = small(), torch.rand(2, 1, 8, 8)
    kinds = [
        3,
        3.0,
        np.int64(3),
        [3, 3],
        torch.tensor([3, 3], dtype=torch.uint16),
        np.array([3, 3], np.uint8),
    ]
    with torch.no_grad():
        for y in kinds:
            assert torch.equal(model.log_prob(x, y), model.log_prob(x, 3))


def test_predictions_have_no_dropout_even_in_training_mode() -> None:
    model, x = small(), torch.rand(3, 1, 8, 8)
    model.train()
    with torch.no_grad():
        assert torch.equal(model.predict_proba(x), model.predict_proba(x))


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def edit(**changes: object) -> object:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        for key, value in changes.items():
            (config if key in config else config["arguments"])[key] = value
        path.write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "is damaged"),
        (flip, "is damaged"),
        (edit(supervised=0.25), "is damaged"),
        (edit(format=3), "of format 3"),
        (edit(model="os.system"), "describes a 'os.system'"),
        (edit(sha256="0"), "is damaged"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not a model's configuration"),
        (
            lambda folder: (folder / "config.json").write_text("[1]"),
            "is not a model's configuration",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot read"),
        (lambda folder: (folder / "config.json").unlink(), "cannot read"),
    ],
)
def test_a_damaged_model_gives_one_clear_line(damage: object, message: str, tmp_path: Path) -> None:
    small().save_pretrained(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_files_whose_digest_fits_but_whose_content_does_not_run_no_code(tmp_path: Path) -> None:
    import pickle

    from infocnf.models.pretrained import digest

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    small().save_pretrained(tmp_path)
    weights = pickle.dumps(Evil())
    (tmp_path / "model.safetensors").write_bytes(weights)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["sha256"]
    config["sha256"] = digest(config, weights)
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ValueError, match="does not hold InfoCNF of this version"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def image(*shape: int) -> Tensor:
    return torch.rand(*shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.log_prob(image(2, 8, 8)), r"shape \(batch, 1, 8, 8\), got \(2, 8, 8\)"),
        (
            lambda m: m.log_prob(image(2, 1, 8, 8).float()),
            "samples are torch.float32 but the model is",
        ),
        (lambda m: m.log_prob(image(2, 1, 8, 8) * 255), r"pixels must lie in \[0, 1\]"),
        (lambda m: m.log_prob(image(2, 1, 8, 8), 10), r"labels must lie in 0 .. 9, got 10"),
        (lambda m: m.log_prob(image(2, 1, 8, 8), -1), "got -1"),
        (lambda m: m.log_prob(image(2, 1, 8, 8), 1.5), "whole numbers, got 1.5"),
        (lambda m: m.log_prob(image(2, 1, 8, 8), [1, 2, 3]), r"shape \(\) or \(2,\), got \(3,\)"),
        (
            lambda m: m.log_prob(image(2, 1, 8, 8), {"letter": 1}),
            "a factor 'letter' that .* it has: digit",
        ),
        (lambda m: m.log_prob(image(2, 1, 8, 8), tolerance=-1.0), "got -1.0"),
        (lambda m: m.sample(2, 11), "got 11"),
        (lambda m: m.sample(2, temperature=-1.0), "got -1.0"),
        (lambda m: m(99), "got 99"),
        (lambda m: m({"letter": 1}), "a factor 'letter'"),
        (lambda m: m.log_prob(image(2, 1, 8, 8), "three"), "must be numbers, got 'three'"),
        (lambda m: m.log_prob(image(2, 1, 8, 8), 1e30), "got 1e"),
        (lambda m: InfoCNF((2,), {"a": Categorical(2), "b": Categorical(2)}, 1.0)(1), "keys a, b"),
        (lambda m: InfoCNF((2,)).double().log_prob(image(1, 2), 7), "has 0 factors: leave out y"),
        (lambda m: InfoCNF((2,), {"a": 10}), "must be Categorical or Real, got 10"),
        (lambda m: InfoCNF((4,), {"a": Categorical(2)}, 0.1), "supervised code of 0 dimensions"),
        (lambda m: InfoCNF(4), "got 4"),
        (lambda m: InfoCNF((4.7,)), "got"),
        (lambda m: InfoCNF((2,), blocks=0), "at least 1, got 0"),
        (lambda m: InfoCNF((2,), method="rk45"), "got 'rk45'"),
        (lambda m: InfoCNF((2,), method="rk4"), "needs the number of steps"),
        (lambda m: InfoCNF((2,), tolerance=[1e-5] * 7), "there are 7 tolerances"),
        (lambda m: InfoCNF((2,), tolerance="1e-5"), "got '1e-5'"),
        (lambda m: InfoCNF((1, 8)), r"\(channels, height, width\), got \(1, 8\)"),
        (lambda m: InfoCNF((1, 8, 8), architecture="flat"), "does not fit .* use 'multiscale'"),
        (lambda m: InfoCNF((1, 8, 8), architecture="unet2"), "got 'unet2'"),
        (lambda m: InfoCNF((1, 8, 8), DIGIT, 1.5), "between 0 and 1, got 1.5"),
        (lambda m: InfoCNF((1, 8, 8), DIGIT, place="middle"), "or indices, got 'middle'"),
        (lambda m: InfoCNF((1, 8, 8), DIGIT, place=[1, 64]), "64 is outside"),
        (lambda m: InfoCNF((1, 8, 8), DIGIT, place=[1, 1]), "occurs twice"),
        (
            lambda m: InfoCNF((2,), {"a": Categorical(2), "b": Real()}, 0.5),
            "2 factors cannot share",
        ),
        (lambda m: InfoCNF((1, 8, 8), trace="full"), "got 'full'"),
        (lambda m: InfoCNF((1, 8, 8), probes="uniform"), "got 'uniform'"),
        (lambda m: InfoCNF((1, 8, 8), gradient="exact"), "got 'exact'"),
        (lambda m: InfoCNF((1, 8, 8), tolerance=0.0), "got 0.0"),
        (lambda m: Categorical(0), "at least 1, got 0"),
        (lambda m: Categorical(2, (0.5, 0.6)), "sum to 1"),
        (lambda m: Real(0.0, -1.0), "positive scale"),
    ],
)
def test_bad_input_is_refused_in_one_line_that_names_it(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call(small())  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_gives_the_same_likelihood_and_gradient() -> None:
    found = []
    for compile_fields in (False, True):
        torch.manual_seed(0)
        model = InfoCNF((3,), blocks=1, hidden=(8,), compile=compile_fields).eval()
        log_prob = model.log_prob(torch.randn(4, 3))
        found.append(
            [log_prob, *torch.autograd.grad(log_prob.sum(), list(model.flow.parameters()))]
        )
    torch.testing.assert_close(*found)
    assert "compile" not in model.config()


def test_a_sample_that_cannot_be_solved_is_an_error_that_names_block_time_and_remedy() -> None:
    model = small(shape=(2,), factors=None)
    with pytest.raises(
        SolveError,
        match=r"block 0 failed for 1 of 3 samples \(rows \d\), at time 0 .*check the input",
    ):
        model.log_prob(torch.tensor([[0.0, 1.0], [torch.nan, 0.0], [1.0, 1.0]]))


def test_training_may_use_another_method_than_evaluation() -> None:
    x = torch.randn(5, 2)

    def cost(train: bool, **methods: str) -> int:
        torch.manual_seed(1)
        model = InfoCNF((2,), hidden=(8,), tolerance=1e-4, **methods).train(train)
        stats = model.encode(x, tolerance=None).stats
        assert stats is not None
        return int(stats.forward.sum())

    mixed = {"method": "dopri5", "training_method": "bosh3"}
    assert cost(True, **mixed) == cost(True, method="bosh3") != cost(True, method="dopri5")
    assert cost(False, **mixed) == cost(False, method="dopri5") != cost(False, method="bosh3")
    with pytest.raises(ValueError, match="training_method must be adaptive, got 'rk4'"):
        InfoCNF((2,), training_method="rk4")


def test_what_is_no_tensor_and_no_number_of_samples_is_refused() -> None:
    flow = InfoCNF((2,), hidden=(4,)).eval()
    for x in (np.zeros((3, 2), np.float32), [[0.0, 0.0]]):
        with pytest.raises(ValueError, match=r"not a tensor: use torch.as_tensor\(x, dtype="):
            flow.log_prob(x)
    for n in (-1, 2.5, "3"):
        with pytest.raises(ValueError, match="number of samples must be a whole one"):
            flow.sample(n)
    assert flow.sample(0).shape == (0, 2)


def test_samples_that_cannot_be_solved_are_nan_where_that_is_asked_for() -> None:
    flow, x = InfoCNF((2,), hidden=(4,)).eval(), torch.randn(5, 2)
    expected, error = flow.log_prob(x, error=True)
    x[[1, 3]] = torch.nan
    found, bound = flow.log_prob(x, error=True, failures="nan")
    for one, other in ((found, expected), (bound.total, error.total)):
        torch.testing.assert_close(one[[0, 2, 4]], other[[0, 2, 4]])
        assert one[[1, 3]].isnan().all()
    assert flow.log_prob(x[1:2], failures="nan").isnan().all()
    with pytest.raises(SolveError, match=r"rows 1, 3"):
        flow.log_prob(x)
    with pytest.raises(ValueError, match="raise, or nan in evaluation mode"):
        flow.train().log_prob(x, failures="nan")


def test_no_samples_have_no_likelihoods_and_no_errors() -> None:
    flow = InfoCNF((2,), hidden=(4,)).eval()
    found, error = flow.log_prob(torch.empty(0, 2), error=True)
    assert found.shape == error.total.shape == (0,)


def test_a_few_samples_are_the_beginning_of_more() -> None:
    flow = InfoCNF((2,), {"side": Categorical(3)}, hidden=(4,)).eval()
    few, more = (flow.sample(n, generator=torch.Generator().manual_seed(5)) for n in (8, 16))
    torch.testing.assert_close(few, more[:8])
    series = LatentODE(1, {"side": Categorical(3)}, latent=4, units=4, hidden=(4,)).eval()
    times = torch.linspace(0, 1, 3)
    few, more = (
        series.sample(n, times, generator=torch.Generator().manual_seed(5)) for n in (2, 4)
    )
    torch.testing.assert_close(few, more[:2])
    assert series.sample(0, times).shape == (0, 3, 1) and flow.sample(0).shape == (0, 2)


@pytest.mark.parametrize("architecture", ["flat", "multiscale", "residual", "unet"])
def test_every_architecture_trains_under_autocast(architecture: str) -> None:
    shape = (1, 8, 8) if architecture in ("multiscale", "unet") else (3,)
    hidden = (8, 8) if architecture == "residual" else (8,)
    flow = InfoCNF(shape, architecture=architecture, hidden=hidden).float()
    x = torch.rand(4, *shape, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = likelihood_objective(flow, x).loss
        loss.backward()
        assert flow.eval().log_prob(x).dtype == torch.float32
    assert math.isfinite(loss.item())
    assert all(p.grad is None or p.grad.isfinite().all() for p in flow.parameters())
