"""Experiments: what is trained is found again, and tables say what evaluations say."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infocnf.errors import InputError, WorkError
from infocnf.experiments import EXPERIMENTS, experiments_of
from infocnf.experiments.analysis import Result, mean_tolerance, over_cost, summary
from infocnf.experiments.arms import GATES
from infocnf.experiments.declaration import Arm, Recipe
from infocnf.experiments.forecast import forecast
from infocnf.experiments.runner import ExperimentRunner, identity
from infocnf.experiments.scales import SCALES, scale_of

pytestmark = pytest.mark.slow

TINY, PAPER = SCALES["tiny"], SCALES["paper"]
NAMES = """density-1d tolerances small-batch large-batch large-batch-methods unconditional mnist
    marginal batch-size small-vs-large bigger spirals partition""".split()


def test_every_result_of_the_paper_has_its_experiment() -> None:
    assert sorted(EXPERIMENTS) == sorted(NAMES)
    assert len(experiments_of("all")) == len(NAMES)
    with pytest.raises(InputError, match="no result is called 'small'"):
        experiments_of("small")
    with pytest.raises(InputError, match="--scale must be one of laptop, paper, tiny"):
        scale_of("huge")


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_arm_is_a_configuration_with_three_seeds(name: str, scale: object) -> None:
    experiment, size = EXPERIMENTS[name], SCALES[getattr(scale, "name")]  # noqa: B009
    assert len(size.seeds) >= 3
    assert len({arm.name for arm in experiment.arms}) == len(experiment.arms)
    assert experiment.table(size)
    for arm in experiment.arms:
        if arm.matches is not None:
            assert experiment.arm(arm.matches).matches is None
        configs = [arm.recipe(size, seed, 1e-3).config for seed in size.seeds]
        assert [config.training.seed for config in configs] == list(size.seeds)


def test_batches_have_the_papers_share_of_the_data() -> None:
    for base, share in (("small", 900 / 50_000), ("large", 8_000 / 50_000)):
        config = Arm("", base).recipe(SCALES["laptop"], 0).config
        count = 1797 - config.data.validation - config.data.test
        assert config.training.batch_size / count == pytest.approx(share, rel=0.05)


def test_a_run_is_what_is_trained_not_where() -> None:
    recipe = Arm("", "small").recipe(TINY, 0)
    elsewhere = Recipe(recipe.preset, (*recipe.settings, "data.directory=/a", "trainer.threads=2"))
    assert identity(recipe) == identity(elsewhere)
    other = [Arm("", "small").recipe(TINY, 1), Arm("", "small", GATES).recipe(TINY, 0)]
    assert len({identity(r) for r in (recipe, *other)}) == 3


def test_metrics_under_both_protocols(tmp_path: Path) -> None:
    rows = [
        {"epoch": 1.0, "step": 10.0, "test_error_percent": 9.0, "nfe_forward": 30.0}
        | {"nfe_backward": 20.0, "tolerance_0": 1e-4, "tolerance_1": 1e-2},
        {"epoch": 2.0, "step": 20.0, "test_error_percent": 7.0, "nfe_forward": 60.0}
        | {"nfe_backward": 40.0, "tolerance_0": 1e-4, "tolerance_1": 1e-2},
        {"epoch": 3.0, "step": 30.0, "nfe_forward": 60.0, "nfe_backward": 40.0},
    ]
    evaluation = {"error_percent": 8.0, "factors": {"y": {"rmse": 0.5}}}
    probes = {"area": {"own": 0.1, "many": [1.0]}}
    metrics = Result(
        0, Arm("", "small").recipe(TINY, 0), tmp_path, rows, evaluation, probes
    ).metrics
    assert (metrics["evaluated_error_percent"], metrics["least_error_percent"]) == (8.0, 7.0)
    assert metrics["nfe_forward"] == 50.0 and metrics["nfe"] == pytest.approx(250 / 3)
    assert metrics["nfe_growth"] == 2.0 and metrics["tolerance"] == pytest.approx(1e-3)
    assert (metrics["y_rmse"], metrics["area_own"]) == (0.5, 0.1) and "area_many" not in metrics
    assert over_cost(rows, lambda row: row.get("test_error_percent")) == [(500, 9), (1500, 7)]
    assert mean_tolerance(rows[2:]) is None
    assert summary([1.0, None]) is None
    found = summary([1.0, 3.0])
    assert found is not None and found.text(".1f") == "2.0 ± 1.4"


def test_a_run_that_fails_is_told_with_its_log(tmp_path: Path) -> None:
    runner = ExperimentRunner(tmp_path)
    wrong = Recipe("digits-likelihood", ("data.limit=20", "data.validation=5", "model.blocks=99"))
    with pytest.raises(WorkError, match=r"train.*failed: see .*log; the same command tries again"):
        runner.make([Recipe(wrong.preset, (*wrong.settings, "model.scales=9"))])


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    recipe = Arm("", "small").recipe(TINY, 0)
    runner = ExperimentRunner(tmp_path)
    place = runner.folder_of(recipe)
    (place / "checkpoints").mkdir(parents=True)
    (place / "splits.npz").write_bytes(b"half")
    runner.make([recipe])
    assert runner.is_done(recipe)


def call(folder: Path) -> subprocess.Popen[str]:
    """Reproduce the tiny result in a process of its own."""
    places = ("--out", str(folder / "results"), "--runs", str(folder / "runs"))
    given = ("reproduce", "unconditional", "--scale", "tiny", *places, "--jobs", "2")
    return subprocess.Popen(
        [sys.executable, "-m", "infocnf", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_runs(folder: Path, count: int) -> None:
    """Until so many runs have begun."""
    for _ in range(600):
        if len(list(folder.glob("runs/*/config.toml"))) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("no run begins")


def test_a_result_from_nothing_stopped_killed_resumed_and_found_again(tmp_path: Path) -> None:
    stopped = call(tmp_path)
    wait_for_runs(tmp_path, 1)
    stopped.send_signal(signal.SIGINT)
    _, message = stopped.communicate()
    assert stopped.returncode == 1 and "the same command goes on" in message
    assert not list((tmp_path / "runs").glob("*/evaluation.json"))

    killed = call(tmp_path)
    wait_for_runs(tmp_path, 3)
    killed.kill()  # its children live on, and are waited for
    killed.communicate()

    last = call(tmp_path)
    _, message = last.communicate()
    assert last.returncode == 0, message
    folder = tmp_path / "results" / "unconditional"
    files = {path.name for path in folder.iterdir()}
    assert files == {
        *("table.md", "table.csv", "figure.png", "figure.svg", "results.json", "commands.txt")
    }

    results = json.loads((folder / "results.json").read_text())
    table = {(r["arm"], r["figure"]): r for r in csv.DictReader((folder / "table.csv").open())}
    for arm, found in results["arms"].items():
        bits = []
        for run in found["runs"]:
            place = tmp_path / "runs" / run["run"]
            evaluation = json.loads((place / "evaluation.json").read_text())
            bits.append(evaluation["bits_per_dim"])
        mean = sum(bits) / 3
        assert float(table[arm, "evaluated_bits_per_dim"]["mean"]) == pytest.approx(mean, abs=1e-12)
        assert f"{mean:.3f}" in (folder / "table.md").read_text()
    learned = results["arms"]["CNF, learned"]["means"]["tolerance"]["mean"]
    control = results["arms"]["control: fixed at the learned mean"]["means"]["tolerance"]["mean"]
    assert control == pytest.approx(learned, rel=0.06)  # two digits of it

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    again = call(tmp_path)
    again.communicate()
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    assert again.returncode == 0 and before == after
    assert json.loads((folder / "results.json").read_text()) == results


def paper_recipes() -> dict[str, Recipe]:
    """Every distinct run of the paper's scale, of its first seed."""
    found: dict[str, Recipe] = {}
    for experiment in EXPERIMENTS.values():
        for arm in experiment.arms:
            recipe = arm.recipe(PAPER, PAPER.seeds[0], 1e-4 if arm.matches else None)
            found.setdefault(identity(recipe), recipe)
    return found


@pytest.mark.parametrize("recipe", paper_recipes().values(), ids=paper_recipes().keys())
def test_one_real_iteration_at_the_papers_scale(recipe: Recipe) -> None:
    found = forecast(recipe)
    assert found.loss == found.loss and abs(found.loss) < 1e3
    assert found.evaluations >= 7 and found.steps > 0
    cifar = recipe.config.data.name == "cifar10"
    if cifar and recipe.config.model.supervised:
        assert 1.3e6 < found.parameters < 3.1e6  # the reference: 1.41 to 2.85 million
    assert (found.hours is not None) == (recipe.config.data.name in ("cifar10", "mnist"))


def test_forecasts_know_of_examples_that_are_fewer_and_smaller() -> None:
    arm = EXPERIMENTS["mnist"].arms[0]
    recipe = arm.recipe(scale_of("laptop"), 0)
    small = forecast(recipe)
    assert small.steps == 5 * 40  # epochs of 2,000 in batches of 50
    larger = forecast(Recipe(recipe.preset, (*recipe.settings, "data.shrink=1")))
    assert larger.parameters > small.parameters
