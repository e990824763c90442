"""Series from files and from formulas, and every command on them."""

from __future__ import annotations

import csv
import io
import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from infocnf.cli.app import run as command
from infocnf.data import load_data
from infocnf.data.synthetic import curve, draw
from infocnf.errors import InputError
from infocnf.evaluation.driver import Driver
from infocnf.evaluation.series import evaluate_series, root
from infocnf.runs import Run
from tests.cli.test_command import start, wait_for
from tests.runs.tiny import last, rows, same_state

pytestmark = pytest.mark.slow

SMALL = [
    "training.epochs=4",
    "training.min_steps=0",
    "training.batch_size=16",
    "training.warmup=0",
    "training.validate_every=2",
    "training.checkpoint_minutes=0",
    "series.latent=4",
    "series.units=6",
    "series.hidden=[6]",
    "series.decoder=6",
    "series.draws=2",
    "trainer.threads=1",
]
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]


def waves(count: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, values and kinds of waves with gaps and of different lengths."""
    rng = np.random.default_rng(seed)
    kind = np.arange(count) % 2
    times = np.cumsum(rng.uniform(0.2, 1.0, (count, 12)), 1)
    for i, length in enumerate(rng.integers(6, 13, count)):
        times[i, length:] = np.nan
    values = np.stack([np.sin(times), np.cos((1 + kind[:, None]) * times)], 2)
    values[rng.uniform(size=values.shape) < 0.1] = np.nan
    values[:, 0] = 0.5
    return times, values, kind


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waves") / "waves.npz"
    times, values, kind = waves()
    np.savez(path, x=values, times=times, y=np.array(["slow", "fast"])[kind])
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waves") / "waves.csv"
    times, values, kind = waves()
    lines = ["who,when,sine,cosine,kind,weight"]
    for i, (mine, rest) in enumerate(zip(times, values, strict=True)):
        for t, (a, b) in zip(mine, rest, strict=True):
            if not math.isnan(t):
                cells = ["" if math.isnan(v) else f"{v:.6f}" for v in (a, b)]
                lines.append(f"w{i},{t:.6f},{','.join(cells)},{'ab'[kind[i]]},{i / 7:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_spirals_are_those_of_the_paper() -> None:
    seen, labels, truth = draw(200, 3)
    again, _, _ = draw(200, 3)
    assert np.array_equal(seen, again) and seen.shape == (200, 200, 3)
    assert labels["direction"].sum() == 100
    assert abs((seen[..., 1:] - truth[:, 200:400, 1:]).std() - 0.3) < 0.005
    assert truth.shape == (200, 600, 3) and np.allclose(truth[:, 200, 0], 0.0)
    gap = 6.0 * math.pi / 999
    assert np.allclose(np.diff(truth[..., 0]), gap, atol=1e-5)
    assert abs(labels["a"].mean() - 1.0) < 0.03 and abs(labels["a"].std() - 0.08) < 0.02
    assert abs(labels["b"].mean() - 0.25) < 0.01 and abs(labels["b"].std() - 0.03) < 0.01

    a, b = np.array([1.1]), np.array([0.2])
    t = 6.0 * math.pi * 500 / 999
    left, right = curve(a, b, np.array([0]))[0, 500], curve(a, b, np.array([1]))[0, 500]
    s = 6.0 * math.pi + 1.0 - t
    radius = 1.1 + 0.2 * 50.0 / s
    assert left == pytest.approx([radius * math.cos(s) - 5.0, radius * math.sin(s)])
    radius = 1.1 + 0.2 * t
    assert right == pytest.approx([radius * math.cos(t) + 5.0, radius * math.sin(t)])


def test_arrays_and_tables_hold_the_same_series(arrays: Path, table: Path) -> None:
    one = load_data(path=arrays)
    two = load_data(path=table, series="who", time="when", label=["kind", "weight"])
    np.testing.assert_allclose(one.raw.x, two.raw.x, atol=1e-6)
    assert two.raw.columns == ("when", "sine", "cosine")
    assert set(two.raw.classes) == {"kind"} and two.raw.labels["weight"][7] == 1.0
    assert one.raw.is_series and one.preparation.series

    x, _ = one.examples("train")
    prepared = one.preparation(x, torch.float64)
    assert (prepared[:, 0, 0] == 0.0).all()
    ends = prepared[..., 0].nan_to_num(nan=-1.0).amax(1)
    assert float(ends.mean()) == pytest.approx(4.0)
    values = prepared[..., 1:].flatten(0, 1)
    assert values.nanmean(0).abs().max() < 1e-9
    torch.testing.assert_close(
        one.preparation.restore(prepared[..., 1:]), x[..., 1:].double(), equal_nan=True
    )


@pytest.fixture(scope="module")
def trained(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    arguments = ["train", "series", "--data", str(arrays), *SETTINGS, "--out", str(folder)]
    assert command(arguments) == 0
    return folder


def test_all_commands_on_arrays(
    trained: Path, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["evaluate", str(trained)]) == 0
    found = json.loads((trained / "evaluation.json").read_text())
    assert found["examples"] == 6 and found["rmse_fit"] > 0 and found["rmse_after"] is None
    assert not found["truth"] and 0 <= found["error_percent"] <= 100
    assert f"{found['rmse_fit']:.4f}" in capsys.readouterr().out
    assert command(["sample", str(trained), "-n", "6"]) == 0
    assert (trained / "samples.png").stat().st_size > 5000
    out = tmp_path / "drawn.npz"
    assert command(["sample", str(trained), "--label", "fast", "-n", "3", "-o", str(out)]) == 0
    drawn = np.load(out)
    assert drawn["x"].shape == (3, 100, 2) and set(drawn["y"]) == {"fast"}
    assert command(["report", str(trained)]) == 0
    assert "Trajectories" in (trained / "report.html").read_text()

    answers = tmp_path / "answers.csv"
    assert command(["predict", str(trained), str(arrays), "-o", str(answers)]) == 0
    lines = list(csv.DictReader(io.StringIO(answers.read_text())))
    assert len(lines) == 60 and {line["label"] for line in lines} <= {"slow", "fast"}
    assert all(math.isfinite(float(line["log_likelihood"])) for line in lines)


def test_all_commands_on_a_table(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    own = ["data.series=who", "data.time=when", 'data.label=["kind", "weight"]']
    own += ["series.encoder=ode_rnn", "training.epochs=1", "tolerance.name=learned"]
    settings = [*SETTINGS, *(part for setting in own for part in ("--set", setting))]
    assert command(["train", "series", "--data", str(table), *settings, "--out", str(folder)]) == 0
    assert command(["evaluate", str(folder)]) == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert set(found["factors"]["weight"]) == {"rmse", "rmse_of_the_mean"}
    few = tmp_path / "few.csv"  # without labels
    few.write_text(
        "".join(line.rsplit(",", 2)[0] + "\n" for line in table.read_text().splitlines())
    )
    answers = tmp_path / "answers.csv"
    assert command(["predict", str(folder), str(few), "-o", str(answers)]) == 0
    lines = list(csv.DictReader(io.StringIO(answers.read_text())))
    assert [line["example"] for line in lines[:2]] == ["w0", "w1"] and "weight_sd" in lines[0]


def test_a_run_of_series_killed_resumes_to_the_same_bits(arrays: Path, tmp_path: Path) -> None:
    longer = ["train", "series", "--data", str(arrays), *SETTINGS, "--set", "training.epochs=12"]
    whole = start(*longer, "--out", "whole", folder=tmp_path)
    output = whole.communicate()[0]
    assert whole.returncode == 0, output
    process = start(*longer, "--out", "run", folder=tmp_path)
    metrics = tmp_path / "run" / "metrics.csv"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(rows(tmp_path / "run")) < 12
    assert command(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert same_state(last(tmp_path / "run"), last(tmp_path / "whole"))
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_errors_are_those_of_the_truth_on_both_sides() -> None:
    """A model that reproduces the truth but for a constant has that constant as its error."""
    from infocnf import LatentODE
    from infocnf.data import Preparation

    torch.manual_seed(0)
    model = LatentODE(2, supervised=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.log_noise.zero_()
    seen, labels, truth = draw(6, 0)
    truth[..., 1:] = 0.0
    truth[:, :200, 1:], truth[:, 400:, 1:] = 2.0, 3.0
    truth[:, 200:400, 1:] = 1.0
    plain = Preparation(mean=(0.0,) * 3, scale=(1.0,) * 3, series=True)
    y = {name: torch.from_numpy(value) for name, value in labels.items()}
    found = evaluate_series(
        Driver(model, plain, batch_size=4),
        torch.from_numpy(seen),
        y,
        torch.from_numpy(truth),
        draws=2,
    )
    assert [found.rmse_fit, found.rmse_before, found.rmse_after] == pytest.approx([1.0, 2.0, 3.0])


def test_the_vowels_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 27), ("test", 18)):
        length = rng.integers(7, 30, count)
        x = rng.normal(size=(count, 29, 12)).astype(np.float32)
        x[np.arange(29) >= length[:, None]] = np.nan
        parts |= {f"x_{part}": x, f"y_{part}": (np.arange(count) % 9).astype(np.uint8)}
        parts |= {f"length_{part}": length.astype(np.uint8)}
    np.savez(tmp_path / "japanese_vowels.npz", **parts)
    data = load_data("japanese_vowels", directory=tmp_path, validation=9)
    assert len(data.parts["test"]) == 18 and data.shape == (29, 13)
    assert data.raw.classes["speaker"] == tuple("123456789")
    with pytest.raises(InputError, match="point --data-dir"):
        load_data("japanese_vowels")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": np.array([0.0, 2.0, 1.0])}, "do not ascend"),
        ({"times": np.array([0.0, np.nan, 1.0])}, "missing before the end"),
        ({"times": np.array([0.0, np.nan, np.nan])}, "fewer than two rows"),
        ({"x": np.full((4, 3, 1), np.nan)}, "has no value"),
        ({"x": np.zeros((4, 3))}, "must be"),
        ({"x": np.full((4, 3, 1), np.inf)}, "infinite"),
        ({"y": np.array([0, 1])}, "2 labels 'label' for 4 series"),
        ({"y": np.array(1)}, "1 labels 'label' for 4 series"),
        ({"times": np.arange(5.0)}, r"times \(series, rows\), got"),
        ({"y_nfe": np.array([0, 1, 0, 1])}, "cannot be called 'nfe'"),
    ],
)
def test_series_that_cannot_be_used_are_refused(
    change: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    good = {"x": np.ones((4, 3, 1)), "times": np.arange(3.0), "y": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "bad.npz", **{**good, **change})
    with pytest.raises(InputError, match=message):
        load_data(path=tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("old", "new", "settings", "message"),
    [
        ("w3,", ",", {}, "row 4 has nothing in column 'who'"),
        ("w3,3.0", "w3,", {}, "row 4 has nothing in column 'when'"),
        ("sad", "", {}, "row 1 has no label in column 'kind'"),
        ("", "", {"real": ["kind"]}, "holds words, which are not real values"),
        ("", "", {"real": ["nosuch"]}, "not in data.label"),
        ("kind", "nfe", {"label": ["nfe"]}, "cannot be called 'nfe'"),
        ("when", "Unnamed: 0", {"time": "Unnamed: 0"}, "without a name"),
        ("w0,0.5,1.0,sad", "w0,0.5,1.0,slow", {}, "changes within series 'w0'"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(
    old: str, new: str, settings: dict[str, list[str] | str], message: str, tmp_path: Path
) -> None:
    rows = ["who,when,value,kind", "w0,0.0,1.0,sad", "w0,0.5,1.0,sad", "w1,0.0,2.0,slow"]
    rows += ["w3,3.0,1.0,slow", "w1,1.0,2.5,slow", "w3,4.0,0.0,slow"]
    text = "\n".join(rows) + "\n"
    path = tmp_path / "bad.csv"
    path.write_text(text.replace(old, new, 1) if old else text)
    given = {"series": "who", "time": "when", "label": ["kind"], **settings}
    with pytest.raises(InputError, match=message):
        load_data(path=path, **given)  # type: ignore[arg-type]


def test_labels_of_arrays_are_chosen(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(40, 3, 1)), "times": np.arange(3)}
    arrays |= {"y_kind": np.array(["a", "b"] * 20), "y_age": np.arange(40)}
    path = tmp_path / "two.npz"
    np.savez(path, **arrays)
    both = load_data(path=path, label="label", real=["age"]).raw
    assert set(both.labels) == {"kind", "age"} and set(both.classes) == {"kind"}
    assert set(load_data(path=path, label=["kind"]).raw.labels) == {"kind"}
    assert load_data(path=path, label=[]).raw.labels == {}
    with pytest.raises(InputError, match="has no label 'sort'"):
        load_data(path=path, label=["sort"])


def test_standard_errors_are_those_of_repetitions() -> None:
    """Series of different difficulty, several draws each."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        scale = 0.5 + torch.rand(300, 1, generator=draw, dtype=torch.float64)
        rest = scale * torch.randn(300, 8, generator=draw, dtype=torch.float64)
        sums = torch.stack([rest.square().sum(1), torch.full((300,), 8.0).double()], 1)
        found.append(root(sums))
    values = torch.tensor([value for value, _ in found])
    errors = torch.tensor([error for _, error in found])
    assert float(errors.mean() / values.std()) == pytest.approx(1.0, abs=0.2)
    assert root(torch.tensor([[4.0, 1.0]])) == (2.0, None)


def test_one_strange_series_does_not_spoil_the_others(
    trained: Path, arrays: Path, tmp_path: Path
) -> None:
    whole = dict(np.load(arrays))
    few = {"x": whole["x"][:3], "times": whole["times"][:3].copy(), "y": np.array(["slow"] * 3)}
    np.savez(tmp_path / "few.npz", **few)
    assert (
        command(["predict", str(trained), str(tmp_path / "few.npz"), "-o", str(tmp_path / "a.csv")])
        == 0
    )
    few["times"][1, 1:6] = 1e12 * np.arange(1, 6)
    few["times"][1, 6:] = np.nan
    np.savez(tmp_path / "strange.npz", **few)
    out = tmp_path / "b.csv"
    assert command(["predict", str(trained), str(tmp_path / "strange.npz"), "-o", str(out)]) == 0
    one, two = (list(csv.DictReader((tmp_path / f"{n}.csv").open())) for n in "ab")
    found = [[float(line["log_likelihood"]) for line in lines] for lines in (one, two)]
    assert found[0][::2] == pytest.approx(found[1][::2], rel=1e-5)
    assert found[0][1] != found[1][1]


def test_recipes_and_data_must_fit(
    arrays: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(["train", "own", "--data", str(arrays), "--out", str(tmp_path / "a")]) == 2
    assert "holds series" in capfd.readouterr().err
    assert (
        command(["train", "series", "--set", "data.name=digits", "--out", str(tmp_path / "b")]) == 2
    )
    assert "holds no series" in capfd.readouterr().err


def test_options_of_flows_are_refused(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["evaluate", str(trained), "--budget", "0.1"]) == 2
    assert "--budget is for flows" in capfd.readouterr().err
    assert isinstance(Run.open(trained).any_model().latent, int)
