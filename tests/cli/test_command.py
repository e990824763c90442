"""Every command from end to end on tiny runs, interruptions, processes, and bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from infocnf import load
from infocnf.cli.app import run as command
from infocnf.data import kind_of
from infocnf.errors import is_leader
from infocnf.runs import Run
from infocnf.training import begin
from tests.runs.tiny import TINY, last, rows, same_state, tiny

pytestmark = pytest.mark.slow

SETTINGS = [part for setting in TINY for part in ("--set", setting)]
LIKELIHOOD = ["digits-likelihood", *SETTINGS]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run, with large steps so that its classes differ."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert command(["train", *LIKELIHOOD, "--set", "training.warmup=0", "--out", str(folder)]) == 0
    return folder


def text(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_train_evaluate_sample_predict_and_report(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["evaluate", str(trained)]) == 0
    found = json.loads((trained / "evaluation.json").read_text())
    wanted = "examples tolerance error_percent bits_per_dim bits_per_dim_marginal "
    wanted += "numerical_error_bits_per_dim nfe_forward calibration_error seconds"
    assert set(wanted.split()) <= set(found) and found["examples"] == 48
    assert f"{found['bits_per_dim']:.4f}" in text(capsys)

    assert command(["sample", str(trained), "-n", "20"]) == 0
    assert Image.open(trained / "samples.png").size[0] > 100
    out = tmp_path / "threes.npz"
    quick = ["--label", "3", "-n", "5", "--steps", "4"]
    assert command(["sample", str(trained), *quick, "-o", str(out)]) == 0
    drawn = np.load(out)["x"]
    assert drawn.shape == (5, 1, 8, 8) and drawn.min() >= 0 and drawn.max() <= 16

    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).save(tmp_path / "one.png")
    assert command(["predict", str(trained), str(tmp_path / "one.png")]) == 0
    printed = text(capsys)
    assert "10 classes (0, 1" not in printed
    (row,) = csv.DictReader(io.StringIO(printed[printed.index("example,") :]))
    assert sum(float(row[f"label={digit}"]) for digit in range(10)) == pytest.approx(1, abs=1e-4)
    assert float(row["label_probability"]) == max(float(row[f"label={d}"]) for d in range(10))
    assert row["label"] in map(str, range(10)) and int(row["nfe"]) > 0

    table = tmp_path / "table.csv"
    assert command(["predict", str(trained), str(out), "-o", str(table)]) == 0
    predicted = list(csv.DictReader(table.open()))
    model = load(trained)
    x = Run.open(trained).preparation(torch.from_numpy(drawn), torch.float32)
    with torch.no_grad():
        expected = model.log_prob(x)
    got = torch.tensor([float(row["log_likelihood"]) for row in predicted])
    torch.testing.assert_close(got.float(), expected, rtol=1e-4, atol=1e-3)

    assert command(["report", str(trained)]) == 0
    page = (trained / "report.html").read_text()
    assert "InfoCNF on digits" in page and page.count("data:image/png;base64,") == 6
    assert f"{found['bits_per_dim']:.3f}" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched


@pytest.mark.parametrize("preset", ["digits-ccnf", "digits-cnf", "density-1d"])
def test_other_models_pass_through_all_commands(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert command(["train", preset, *SETTINGS, "--out", folder]) == 0
    for name in ("evaluate", "sample", "report"):
        assert command([name, folder]) == 0
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (found["error_percent"] is None) == (preset != "digits-ccnf")
    if preset == "density-1d":
        assert (tmp_path / "run" / "samples.csv").read_text().startswith("x\n")
        x = str(tmp_path / "run" / "samples.csv")
        assert command(["predict", folder, x, "-o", str(tmp_path / "own.csv")]) == 0
        assert len((tmp_path / "own.csv").read_text().splitlines()) == 101


def write_table(path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["petal,sepal,species"]
    for i in range(90):
        a, b = rng.normal((i % 3) * 2.0, 0.5, 2)
        lines.append(f"{a:.4f},{b:.4f},{'abc'[i % 3]}")
    path.write_text("\n".join(lines))
    return path


def test_coloured_images_of_ones_own_are_learned_by_matching(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, side in (("wide", 1), ("tall", 0)):  # a bar of some colour on a bright ground
        (tmp_path / "bars" / name).mkdir(parents=True)
        for i in range(40):
            image = rng.integers(200, 256, (12, 12, 3))
            bar = image.swapaxes(0, 1) if side == 0 else image
            bar[5:7] = rng.integers(0, 100, 3)
            image = image.repeat(1 + i % 3, 0).repeat(1 + i % 3, 1)  # photographs differ in size
            Image.fromarray(image.astype(np.uint8)).save(tmp_path / "bars" / name / f"{i}.png")
    out, new = str(tmp_path / "run"), str(tmp_path / "bars" / "tall")
    few = [
        "data.size=12",
        "matching.min_steps=60",
        "model.hidden=[8,16]",
        "evaluation.tolerance=1e-2",
    ]
    few = [part for setting in few for part in ("--set", setting)]
    assert command(["train", "--data", str(tmp_path / "bars"), *few, "--out", out]) == 0
    assert Run.open(Path(out)).config.training.stages == ["matching"]
    assert command(["evaluate", out]) == 0
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["error_percent"] < 20
    assert command(["predict", out, new, "-o", str(tmp_path / "new.csv")]) == 0
    labels = [row["label"] for row in csv.DictReader((tmp_path / "new.csv").open())]
    assert labels.count("tall") > 32
    assert command(["sample", out, "--label", "wide"]) == 0
    assert command(["report", out]) == 0


def test_what_ones_own_data_is_decides_its_preset(tmp_path: Path) -> None:
    arrays = {"pictures": np.zeros((4, 8, 8)), "rows": np.zeros((4, 8)), "times": np.zeros((4, 8))}
    for name, x in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **{"times" if name == "times" else "x": x})
    kinds = [kind_of(tmp_path / f"{name}.npz") for name in arrays]
    assert kinds == ["images", "rows", "series"]
    assert kind_of(tmp_path) == "images"
    assert kind_of(tmp_path / "a.csv") == "rows"
    assert kind_of(tmp_path / "a.csv", "patient") == "series"


def test_a_table_of_ones_own_is_learned_and_predicted(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "iris.csv"), str(tmp_path / "run")
    own = ["--set", "data.label=species", "--set", "training.epochs=25", "--set", "data.test=30"]
    fast = ["training.warmup=0", "training.learning_rate=0.05", "model.supervised=1"]
    fast = [part for s in (*fast, "model.dropout=0", "model.hidden=[16]") for part in ("--set", s)]
    assert command(["train", "--data", str(table), *SETTINGS, *own, *fast, "--out", out]) == 0
    assert command(["evaluate", out]) == 0
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert found["error_percent"] < 20  # chance is 67
    assert command(["predict", out, str(table), "-o", str(tmp_path / "new.csv")]) == 0
    labels = [row["species"] for row in csv.DictReader((tmp_path / "new.csv").open())]
    assert sum(a == "abc"[i % 3] for i, a in enumerate(labels)) > 72
    assert command(["sample", out, "--label", "b", "-o", str(tmp_path / "b.csv")]) == 0
    assert command(["report", out]) == 0


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_evaluation_does_not_depend_on_the_batch_size(tmp_path: Path, kind: str) -> None:
    own = ["tolerance.name=learned", "tolerance.per=sample"] if kind == "learned" else []
    run = begin(tiny("training.precision=float64", "data.limit=20", *own), tmp_path / "run")
    how = ["--learned-tolerances"] if kind == "learned" else ["--tolerance", "1e-4"]
    name = "evaluation-learned-tolerances" if kind == "learned" else "evaluation"
    found = []
    for size in (1, 7, 100, 20):
        assert command(["evaluate", str(run.folder), "--batch-size", str(size), *how]) == 0
        result = json.loads((run.folder / f"{name}.json").read_text())
        del result["seconds"]
        found.append(result)
    for other in found[1:]:
        for name, value in found[0].items():
            if isinstance(value, float | list) and name in ("tolerance", "nfe_blocks"):
                assert other[name] == pytest.approx(value, rel=1e-9)
            elif isinstance(value, float):
                assert other[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
            elif name in ("reference_likelihood", "reliability"):
                for key, inner in value.items():
                    np.testing.assert_allclose(other[name][key], inner, rtol=1e-9)
            elif name == "numerical_error":  # in parts: that of rounding is itself made of rounding
                for key, inner in value.items():
                    assert other[name][key] == pytest.approx(inner, rel=1e-6, abs=1e-12), key
            else:
                assert other[name] == value, name


def test_the_certificate_covers_the_true_error(trained: Path) -> None:
    assert command(["evaluate", str(trained), "--tolerance", "1e-2"]) == 0
    loose = json.loads((trained / "evaluation.json").read_text())
    run = Run.open(trained)
    model, x = run.model(), run.preparation(run.data().examples("test")[0], torch.float32)
    y = run.data().examples("test")[1]["label"]
    with torch.no_grad():
        found, error = model.log_prob(x, y, 1e-2, error=True)
        exact = model.double().log_prob(x.double(), y, 1e-9)
    nats = 64 * np.log(2.0)
    assert loose["numerical_error_bits_per_dim"] == pytest.approx(error.total.mean() / nats)
    assert loose["numerical_error_largest"] == pytest.approx(error.total.max() / nats)
    assert ((found - exact).abs() <= error.total).double().mean() >= 0.95
    parts = loose["numerical_error"]
    assert 0.0 == parts["trace"] < parts["rounding"] < parts["solver"] < parts["total"]
    assert command(["evaluate", str(trained), "--learned-tolerances"]) == 0
    learned = json.loads((trained / "evaluation-learned-tolerances.json").read_text())
    assert learned["tolerance"] == pytest.approx([1e-2] * 3)
    assert learned["bits_per_dim"] == pytest.approx(loose["bits_per_dim"], abs=1e-9)
    command(["evaluate", str(trained)])


def test_an_error_that_is_asked_for_is_met_for_every_example(trained: Path) -> None:
    arguments = ["evaluate", str(trained), "--tolerance", "1e-2"]
    assert command([*arguments, "--error", "1e-4"]) == 0
    found = json.loads((trained / "evaluation.json").read_text())
    assert found["above_target"] == {"target": 1e-4, "examples": 0}
    assert found["numerical_error_largest"] * 64 * np.log(2.0) <= 1e-4
    assert command([*arguments, "--error", "0"]) == 2
    assert command(["evaluate", str(trained), "--budget", "1", "--error", "1"]) == 2
    command(["evaluate", str(trained)])


def test_the_certificate_of_given_steps_covers_their_error(tmp_path: Path) -> None:
    own = ["model.method=midpoint", "model.steps=3", "model.training_method=bosh3"]
    run = begin(tiny(*own, "training.epochs=1"), tmp_path / "run")
    model = run.model()
    x = run.preparation(run.data().examples("test")[0], torch.float32)
    with torch.no_grad():
        found, error = model.log_prob(x, error=True)
        exact = load(run.folder, steps=100).log_prob(x)  # type: ignore[operator]
    true = (found - exact).abs()
    assert (true <= error.total).all() and error.total.median() < 10.0 * true.median()


def test_exact_traces_take_the_noise_out_of_a_likelihood(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    load(run, trace="hutchinson").save_pretrained(run / "model")  # type: ignore[operator]
    assert command(["evaluate", str(run), "--exact-trace", "--tolerance", "1e-3"]) == 0
    exact = json.loads((run / "evaluation.json").read_text())
    assert command(["evaluate", str(run), "--tolerance", "1e-3"]) == 0
    estimated = json.loads((run / "evaluation.json").read_text())
    assert (exact["trace"], estimated["trace"]) == ("exact", "estimated")
    assert exact["numerical_error"]["trace"] == 0.0 < estimated["numerical_error"]["trace"]
    assert exact["bits_per_dim"] != estimated["bits_per_dim"]
    noise = 4.0 * estimated["bits_per_dim_standard_error"]
    assert exact["bits_per_dim"] == pytest.approx(estimated["bits_per_dim"], abs=noise)


def start(*arguments: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "infocnf", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(condition: object, process: subprocess.Popen[str]) -> None:
    assert callable(condition)
    for _ in range(1200):
        if condition():
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    raise AssertionError("it takes too long")


LONGER = [*LIKELIHOOD, "--set", "training.epochs=25", "--set", "training.ema=0.9"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("uninterrupted"), LONGER)


def whole_run(folder: Path, arguments: list[str]) -> Path:
    """A run in a process of its own that nobody disturbs."""
    process = start("train", *arguments, "--out", "run", folder=folder)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return folder / "run"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_resumes_to_the_same_bits(
    number: signal.Signals, tmp_path: Path, uninterrupted: Path
) -> None:
    process = start("train", *LONGER, "--out", "run", folder=tmp_path)
    table = tmp_path / "run" / "metrics.csv"
    wait_for(lambda: table.exists() and len(table.read_text().splitlines()) > 3, process)
    process.send_signal(number)
    output = process.communicate()[0]
    assert process.returncode != 0
    if number != signal.SIGKILL:
        assert process.returncode == 1 and "--resume --out run" in output
        assert "Traceback" not in output
    assert len(rows(tmp_path / "run")) < 25

    assert command(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert same_state(last(tmp_path / "run"), last(uninterrupted))
    assert rows(tmp_path / "run") == rows(uninterrupted)
    kept = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert kept == (uninterrupted / "model" / "model.safetensors").read_bytes()


STAGES = ["digits-matching", *SETTINGS]
for setting in ("matching.epochs=12", "matching.batch_size=16", "training.epochs=3"):
    STAGES += ["--set", setting]
MUON = ("matching.optimizer=muon", "matching.micro_batch=5")


@pytest.fixture(scope="module")
def two_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matching and maximum likelihood."""
    return whole_run(tmp_path_factory.mktemp("stages"), STAGES)


@pytest.mark.parametrize(("stage", "epochs"), [("matching", 4), ("likelihood", 13)])
def test_a_run_killed_in_either_stage_resumes_to_the_same_bits(
    stage: str, epochs: int, tmp_path: Path, two_stages: Path
) -> None:
    process = start("train", *STAGES, "--out", "run", folder=tmp_path)
    table = tmp_path / "run" / "metrics.csv"
    wait_for(lambda: table.exists() and len(table.read_text().splitlines()) > epochs, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert rows(tmp_path / "run")[-1]["stage"] == stage and len(rows(tmp_path / "run")) < 15

    assert command(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert same_state(last(tmp_path / "run"), last(two_stages))
    assert rows(tmp_path / "run") == rows(two_stages)
    kept = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert kept == (two_stages / "model" / "model.safetensors").read_bytes()


def test_a_matching_run_can_be_made_longer(tmp_path: Path) -> None:
    own = ["training.stages=['matching']", "matching.epochs=2", "matching.schedule=constant"]
    config = tiny(*own, *MUON, "matching.batch_size=16", preset="digits-matching")
    run = begin(config, tmp_path / "run").folder
    assert command(["train", "--resume", "--out", str(run), "--set", "training.epochs=9"]) == 2
    assert command(["train", "--resume", "--out", str(run), "--set", "matching.epochs=3"]) == 0
    assert [row["step"] for row in rows(run)] == ["3", "6", "9"]
    assert command(["evaluate", str(run)]) == 0
    assert command(["report", str(run)]) == 0  # without tolerances of training


def test_a_run_of_two_stages_is_one_run(two_stages: Path) -> None:
    found = rows(two_stages)
    assert [row["stage"] for row in found] == ["matching"] * 12 + ["likelihood"] * 3
    assert [int(row["epoch"]) for row in found] == list(range(1, 16))
    matched, fine = found[:12], found[12:]
    assert all(float(row["nfe_forward"]) == 2.0 for row in matched)
    assert all(float(row["nfe_forward"]) > 5.0 for row in fine)
    # exact validations: after matching, then after each epoch
    assert [bool(row["validation_bits_per_dim"]) for row in found] == [False] * 11 + [True] * 4
    assert all(row["validation_one_step_error_percent"] for row in matched)

    best = min(
        (row for row in found if row["validation_loss"]), key=lambda r: float(r["validation_loss"])
    )
    once, flow = (float(best[f"validation_{n}error_percent"]) for n in ("one_step_", ""))
    model = load(two_stages)
    assert model.readout == ("one_step" if once <= flow else "flow")

    assert command(["evaluate", str(two_stages)]) == 0
    figures = json.loads((two_stages / "evaluation.json").read_text())
    assert figures["one_step"]["examples"] == figures["examples"] == 48
    assert figures["readout"] == model.readout
    assert command(["evaluate", str(two_stages), "--budget", "0.01", "--limit", "20"]) == 0
    figures = json.loads((two_stages / "evaluation.json").read_text())
    assert figures["examples"] == 20 and figures["one_step"]["examples"] == 48
    assert figures["numerical_error_bits_per_dim"] <= 0.01
    assert figures["tolerance"] > 1e-5
    assert command(["report", str(two_stages)]) == 0


def test_codes_that_cannot_be_solved_for_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--set", "model.max_steps=1", "--out", str(tmp_path / "run")]
    assert command(["train", *STAGES, "--set", "matching.epochs=1", *own]) == 1
    assert "matching.refit=0" in capsys.readouterr().err


@pytest.mark.parametrize("read", ["flow", "one_step"])
def test_labels_are_predicted_as_the_model_prefers(
    read: str, two_stages: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(two_stages, run)
    model = load(run)
    model.readout = read
    model.save_pretrained(run / "model")
    new = load_digits().images[:20, None].astype(int)  # of noise a sharpened flow is in two minds
    np.savez(tmp_path / "new.npz", x=new)
    out = tmp_path / "labels.csv"
    given = ["predict", str(run), str(tmp_path / "new.npz"), "-o", str(out)]
    assert command([*given, "--tolerance", "1e-6"]) == 0
    table = list(csv.DictReader(out.open()))
    x = Run.open(run).preparation(
        torch.from_numpy(np.load(tmp_path / "new.npz")["x"]), torch.float32
    )
    with torch.no_grad():
        answers = {way: model.predict_proba(x, 1e-6, readout=way) for way in ("flow", "one_step")}
    got = torch.tensor([[float(row[f"label={i}"]) for i in range(10)] for row in table])
    torch.testing.assert_close(got.float(), answers[read], atol=1e-4, rtol=0)
    assert (answers["flow"] - answers["one_step"]).abs().max() > 1e-2


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    exact = ["training.precision=float64", "tolerance=1e-8", "model.training_method=dopri5"]
    exact += ["evaluation.tolerance=1e-7"]
    settings = [part for setting in exact for part in ("--set", setting)]
    tables = []
    for devices in (1, 2):
        own = ["--set", f"trainer.devices={devices}", "--out", f"run{devices}"]
        process = start("train", *LIKELIHOOD, *settings, *own, folder=tmp_path)
        output = process.communicate()[0]
        assert process.returncode == 0, output
        tables.append(rows(tmp_path / f"run{devices}"))
    assert "rank_that_waited_longest" in tables[1][0]
    for one, two in zip(*tables, strict=True):
        for name in ("train_loss", "validation_loss", "train_bits_per_dim"):
            if one[name]:
                assert float(two[name]) == pytest.approx(float(one[name]), abs=1e-5), name
        assert two["train_error_percent"] == one["train_error_percent"]
        assert float(two["nfe_forward"]) == pytest.approx(float(one["nfe_forward"]), rel=0.2)
    assert load(tmp_path / "run2").readout == "flow"
    first, second = (last(tmp_path / f"run{n}")["weights"]["model"] for n in (1, 2))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-5)


def test_two_processes_match_as_one(tmp_path: Path) -> None:
    for devices in (1, 2):
        own = ["--set", f"trainer.devices={devices}", "--out", f"run{devices}"]
        own += ["--set", "matching.epochs=3", "--set", "training.precision=float64"]
        process = start("train", *STAGES, *own, folder=tmp_path)
        output = process.communicate()[0]
        assert process.returncode == 0, output
    one, two = (rows(tmp_path / f"run{n}") for n in (1, 2))
    for name in ("train_matching", "validation_matching", "validation_one_step_error_percent"):
        found, wanted = ([float(row[name]) for row in t if row[name]] for t in (two, one))
        assert found[:3] == pytest.approx(wanted[:3], rel=1e-6), name
    # what an epoch does not have is missing, and not zero: a loss of zero would be the best
    for name in ("validation_loss", "validation_bits_per_dim"):
        assert [bool(row[name]) for row in two] == [bool(row[name]) for row in one]
        assert [bool(row[name]) for row in two][:3] == [False, False, True]
    assert load(tmp_path / "run2").readout == load(tmp_path / "run1").readout


def test_several_processes_resume_to_the_same_bits(tmp_path: Path) -> None:
    own = ["tolerance.name=learned", "tolerance.reward=error", "tolerance.every=2"]
    own += ["training.schedule=constant", "trainer.devices=2", "training.warmup=0"]
    settings = [*LIKELIHOOD, *(part for setting in own for part in ("--set", setting))]
    for arguments in (
        ["train", *settings, "--out", "whole"],
        ["train", *settings, "--set", "training.epochs=1", "--out", "parts"],
        ["train", "--resume", "--out", "parts", "--set", "training.epochs=2"],
    ):
        process = start(*arguments, folder=tmp_path)
        output = process.communicate()[0]
        assert process.returncode == 0, output
    state = last(tmp_path / "whole")["weights"]["model"]
    assert same_state(last(tmp_path / "parts"), last(tmp_path / "whole"))
    assert (state["policy.costs"] > 0).all()  # figures of the policy were added up, too


def test_an_existing_run_is_never_overwritten_unasked(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "config.toml").read_bytes()
    assert command(["train", *LIKELIHOOD, "--out", str(trained)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (trained / "config.toml").read_bytes() == before
    assert command(["sample", str(trained), "-o", str(trained / "data.json")]) == 2
    assert command(["train", "--resume", "--out", str(trained)]) == 0  # it is done already


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["data", "--help"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "infocnf", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0 and "Usage: infocnf" in done.stdout
    imported = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    heavy = {"torch", "lightning", "matplotlib", "pandas", "sklearn", "numpy", "scipy"}
    assert not imported & heavy


def test_show_prints_a_configuration_that_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", "mnist", "--set", "tolerance=1e-3", "--show"]) == 0
    path = tmp_path / "own.toml"
    path.write_text(text(capsys))
    assert command(["train", str(path), "--set", "training.epochs=7", "--show"]) == 0
    shown = text(capsys)
    assert "epochs = 7" in shown and "tolerance = 0.001" in shown and 'name = "mnist"' in shown


def test_samples_of_a_table_say_their_class_and_keep_odd_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = write_table(tmp_path / "iris.csv"), str(tmp_path / "run")
    table.write_text(table.read_text().replace("petal", '"petal, long"'))
    own = ["--set", "data.label=species", "--set", "training.epochs=1"]
    assert command(["train", "--data", str(table), *SETTINGS, *own, "--out", out]) == 0
    assert "species: 3 classes (a, b, c)" in text(capsys)
    assert command(["sample", out, "-n", "7"]) == 0
    drawn = list(csv.DictReader((tmp_path / "run" / "samples.csv").open()))
    assert [row["species"] for row in drawn] == list("abcabca")
    assert set(drawn[0]) == {"petal, long", "sepal", "species"}

    again = ["train", "--data", str(table), "--set", "data.label=species", "--resume"]
    assert command([*again, "--out", out]) == 0  # the command as it was typed, and --resume

    rows_ = 'sepal,extra,"petal, long"\n0.1,9,0.2\n1e300,9,1e300\n'
    (tmp_path / "new.csv").write_text(rows_)
    assert command(["predict", out, str(tmp_path / "new.csv"), "-o", str(tmp_path / "p.csv")]) == 0
    assert "1 of 2 examples are so far" in text(capsys)
    first, second = csv.DictReader((tmp_path / "p.csv").open())
    assert first["species"] in "abc" and np.isfinite(float(first["log_likelihood"]))
    assert not np.isfinite(float(second["log_likelihood"]))


def test_a_report_does_not_show_figures_of_another_model(tmp_path: Path) -> None:
    folder = begin(tiny("training.validate_every=1"), tmp_path / "run").folder
    for words in (["evaluate"], ["report"]):
        assert command([*words, str(folder)]) == 0
    assert "has not been evaluated" not in (folder / "report.html").read_text()
    assert command(["train", "--resume", "--out", str(folder), "--set", "training.epochs=3"]) == 0
    assert command(["report", str(folder)]) == 0
    assert "has not been evaluated" in (folder / "report.html").read_text()


def test_predictions_of_what_cannot_be_solved_are_empty(tmp_path: Path) -> None:
    settings = ["model.max_steps=7", "evaluation.tolerance=1e-2"]
    folder = begin(tiny(*settings), tmp_path / "run").folder
    np.savez(tmp_path / "in.npz", x=np.zeros((3, 8, 8), np.uint8))
    out = tmp_path / "p.csv"
    arguments = ["predict", str(folder), str(tmp_path / "in.npz"), "-o", str(out)]
    assert command([*arguments, "--tolerance", "1e-9"]) == 0
    found = list(csv.DictReader(out.open()))
    assert [row["log_likelihood"] for row in found] == ["nan"] * 3
    assert [row["label"] for row in found] == [""] * 3


def test_a_few_samples_make_a_picture(trained: Path, tmp_path: Path) -> None:
    assert command(["sample", str(trained), "-n", "3", "-o", str(tmp_path / "x.png")]) == 0
    width, height = Image.open(tmp_path / "x.png").size
    assert height > 2.5 * (width - 30)


def test_paths_of_any_letters_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "d\N{GRINNING FACE} é.csv")
    own = ["--set", "data.label=species", "--set", "training.epochs=1", "--out", "run"]
    own += ["--set", "training.min_steps=0"]
    assert command(["train", "--data", "d\N{GRINNING FACE} é.csv", *SETTINGS, *own]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command(["evaluate", "../run"]) == 0


@pytest.mark.parametrize(
    ("environment", "leads"),
    [
        ({}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),  # started by Lightning in a SLURM shell
        ({"SLURM_PROCID": "3"}, False),
    ],
)
def test_one_process_leads(
    environment: dict[str, str], leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_leader() == leads


@pytest.mark.parametrize(
    ("name", "content", "commands", "reason"),
    [
        ("data.json", "{}", ("evaluate", "report", "sample"), "data.json has no"),
        ("data.json", "no", ("evaluate", "report", "sample"), "data.json cannot be read"),
        ("evaluation.json", "no", ("report",), "evaluation.json cannot be read"),
        ("environment.json", None, ("report",), "environment.json cannot be read"),
        ("metrics.csv", "", ("report",), "train for an epoch first"),
    ],
)
def test_a_run_that_is_half_there_says_what_is_missing(
    name: str,
    content: str | None,
    commands: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = begin(tiny("training.epochs=1"), tmp_path / "run").folder
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_text(content)
    for word in commands:
        capsys.readouterr()
        assert command([word, str(folder)]) == 2
        assert reason in capsys.readouterr().err


def test_two_nodes_train_together(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    nodes = [
        start(
            *("train", *LIKELIHOOD, "--set", "trainer.nodes=2", "--out", "run"),
            folder=tmp_path,
            NODE_RANK=str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        for rank in range(2)
    ]
    outputs = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "trained: run" in outputs[0] and outputs[1] == ""
    assert len(rows(tmp_path / "run")) == 2
