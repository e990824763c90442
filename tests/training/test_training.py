"""Training that does not depend on interruptions and micro-batches, and survives trouble."""

from __future__ import annotations

import logging
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infocnf import Categorical, InfoCNF
from infocnf.errors import InputError, WorkError
from infocnf.evaluation import Driver, evaluate
from infocnf.objectives import likelihood_objective
from infocnf.ode import set_aside
from infocnf.runs import Run, checkpoints, presets, read_config
from infocnf.runs.build import build_data, build_model
from infocnf.runs.checkpoints import intact, latest
from infocnf.runs.config import Config
from infocnf.runs.parsing import explain, keys, parse_config, read_tables, to_toml
from infocnf.tolerances import Choice, Policy
from infocnf.training import begin, resume
from infocnf.training.optim import averaging, parameter_groups, rate_factor, set_rates
from infocnf.training.stages import Sampler, pieces
from tests.runs.tiny import Watcher, last, rows, same_state, tiny, weights


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_epoch_visits_each_example_once(world: int) -> None:
    order = Sampler(examples=103, batch_size=20, seed=1)
    steps = [
        [order.batch(2, step, rank, world) for rank in range(world)] for step in range(order.steps)
    ]
    together = torch.cat([part for step in steps for part in step])
    assert torch.equal(together.sort().values, torch.arange(103))
    sizes = [sum(map(len, step)) for step in steps]
    assert max(sizes) <= 20 and max(sizes) - min(sizes) <= 1
    assert not torch.equal(order.batch(2, 0), order.batch(3, 0))


def test_pieces_cover_everything_in_order() -> None:
    for total in range(1, 40):
        for largest in range(1, 12):
            cut = pieces(total, largest)
            assert cut[0].start == 0 and cut[-1].stop == total
            assert all(a.stop == b.start for a, b in pairwise(cut))
            assert max(s.stop - s.start for s in cut) <= largest


def test_the_learning_rate_warms_up_drops_and_follows_a_cosine() -> None:
    config = tiny("training.warmup=10", "training.milestones=[3, 5]", "training.epochs=8").training
    constant = config.model_copy(update={"schedule": "constant"})
    factors = [rate_factor(constant, step, steps_per_epoch=4) for step in range(32)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10:12] == [1.0, 1.0]
    assert factors[12:20] == pytest.approx([0.1] * 8) and factors[20:] == pytest.approx([0.01] * 12)
    cosine = config.model_copy(update={"schedule": "cosine", "milestones": [], "warmup": 0})
    assert rate_factor(cosine, 16, 4) == pytest.approx(0.01 + 0.99 * 0.5)
    assert rate_factor(cosine, 32, 4) == pytest.approx(0.01)


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_whole_and_is_written_as_it_is_read(name: str, tmp_path: Path) -> None:
    config = read_config(name)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert read_config(str(path)) == config
    assert "training.epochs" in keys(Config)


@pytest.mark.parametrize(
    ("name", "parameters", "blocks"),
    [
        ("paper-cifar10-small-batch", 1_408_030, 14),
        ("paper-mnist", None, 10),
        ("paper-cifar10-2x", None, 28),
    ],
)
def test_the_papers_presets_have_the_papers_models(
    name: str, parameters: int | None, blocks: int
) -> None:
    config = read_config(name)
    shape = (1, 28, 28) if name == "paper-mnist" else (3, 32, 32)
    model = InfoCNF(shape, {"label": Categorical(10)}, **config.model.model_dump())
    assert len(model.flow.blocks) == blocks
    assert parameters in (None, sum(p.numel() for p in model.parameters()))


class Copies(Watcher):
    """Keeps a copy of the last checkpoint at the start of each step."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps

    def before(self, training: Any) -> None:
        number = training.epoch * self.steps + training.batch
        shutil.copy(training.checkpointer.last, self.folder / f"{number}.ckpt")


class Wandering(Policy, name="wandering"):
    """A policy with weights, random draws and memory: what a learned one will have."""

    def __init__(self, spread: float = 0.3) -> None:
        super().__init__()
        self.spread = spread
        self.centre = nn.Parameter(torch.tensor(-2.0))
        self.register_buffer("memory", torch.zeros(2))

    def forward(self, block: int, features: Tensor, seeds: Tensor | None = None) -> Choice:
        noise = torch.randn(()) * self.spread if self.training else torch.zeros(())
        action = (self.centre + noise + 0.01 * self.memory[0]).detach()
        log_prob = -0.5 * ((action - self.centre) / self.spread).square()
        return Choice(float(10.0**action), log_prob)

    def begin_step(self, progress: float) -> None:
        self.memory[1] = progress

    def end_step(self, metrics: Any) -> None:
        self.memory[0] = 0.9 * self.memory[0] + 0.001 * metrics["forward"]

    def config(self) -> dict[str, Any]:
        return {"name": "wandering", "spread": self.spread}


@pytest.mark.parametrize(
    "policy",
    [
        "fixed",
        "wandering",
        "budget error=1e-4",
        "schedule start=1e-2",
        "learned per=sample reward=error every=2",
        "learned per=batch reward=loss",
    ],
)
def test_a_run_resumed_from_any_step_ends_with_the_same_bits(tmp_path: Path, policy: str) -> None:
    name, *arguments = policy.split()
    settings = [f"tolerance.{setting}" for setting in (f"name={name}", *arguments)]
    config = tiny("training.ema=0.9", "objective.kinetic=0.01", *settings)
    run = begin(config, tmp_path / "run", observer=Copies(tmp_path, 3))
    expected, table = last(run.folder), rows(run.folder)
    weights = (run.folder / "model" / "model.safetensors").read_bytes()
    assert expected["steps"] == 6 and len(table) == 2

    for number in range(6) if policy == "fixed" else (1, 3, 5) if policy == "wandering" else (2,):
        shutil.copy(tmp_path / f"{number}.ckpt", run.folder / "checkpoints" / "last.ckpt")
        resume(run.folder)
        assert same_state(last(run.folder), expected), f"from step {number}"
        assert rows(run.folder) == table
        assert (run.folder / "model" / "model.safetensors").read_bytes() == weights
    if policy == "wandering":
        assert expected["weights"]["model"]["policy.memory"].abs().min() > 0
        assert float(table[0]["tolerance_0"]) != float(table[1]["tolerance_0"])


def test_arguments_of_a_policy_may_come_before_its_name() -> None:
    for settings in (["per=sample", "name=learned"], ["name=learned", "per=sample"]):
        assert tiny(*(f"tolerance.{s}" for s in settings)).tolerance["per"] == "sample"


def test_what_gates_do_is_logged_for_each_block(tmp_path: Path) -> None:
    own = ["name=learned", "per=sample", "reward=error", "every=2", "start=1e-3", "largest=1e-1"]
    config = tiny(*(f"tolerance.{s}" for s in own), "training.clip=0.1")
    table = rows(begin(config, tmp_path / "run").folder)
    for row in table:
        for block in range(3):
            assert 0 < float(row[f"tolerance_{block}"]) < 1e-1
            assert 0.1 < float(row[f"tolerance_spread_{block}"]) < 0.7
            assert float(row[f"reward_{block}"]) < 0 < float(row[f"gate_gradient_{block}"])
        each = [float(row[f"nfe_{block}"]) for block in range(3)]
        assert sum(each) == pytest.approx(float(row["nfe_forward"]))
        assert float(row["log_prob_error"]) >= 0 and float(row["multiplier"]) > 0
        assert float(row["nfe_measuring"]) > 0
    assert float(table[0]["reward_0"]) < float(table[0]["reward_2"])  # it pays for the others, too


def test_gates_neither_clip_nor_decay_with_the_flow(tmp_path: Path) -> None:
    """The flow's weights after a step do not depend on how loud its gates are."""
    own = ["training.weight_decay=0.1", "training.policy_learning_rate=0.03"]
    config = tiny("tolerance.name=learned", *own)
    flow, gates = parameter_groups(build_model(config, build_data(config)))
    set_rates([flow, gates], config.training, 0.03, factor=0.5)
    assert (flow["weight_decay"], gates["weight_decay"]) == (0.1, 0.0)
    assert (flow["lr"], gates["lr"]) == (0.5 * config.training.learning_rate, 0.015)
    found = []
    for alpha in (0.1, 1e6):
        own = [f"tolerance.{s}" for s in ("name=learned", f"alpha={alpha}")]
        config = tiny(*own, "training.clip=0.01", "training.epochs=1", "training.batch_size=48")
        begin(config, tmp_path / str(alpha))
        found.append(weights(tmp_path / str(alpha)))
    names = [name for name in found[0] if name.startswith("flow")]
    assert names and all(torch.equal(found[0][name], found[1][name]) for name in names)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(tiny(), tmp_path / "run", observer=Copies(tmp_path, 3))
    expected, folder = last(run.folder), run.folder / "checkpoints"
    whole = (folder / "last.ckpt").read_bytes()
    for damaged in (whole[:1000], whole[:5000] + b"\x00" * 64 + whole[5064:], b""):
        shutil.copy(tmp_path / "4.ckpt", folder / "previous.ckpt")
        (folder / "last.ckpt").write_bytes(damaged)
        caplog.clear()
        assert latest(folder).name == "previous.ckpt"
        assert "going on from the one before" in caplog.text
    resume(run.folder)
    assert same_state(last(run.folder), expected)
    assert intact(folder / "previous.ckpt")  # the damaged one has not taken its place

    (folder / "last.ckpt").write_bytes(b"no")
    (folder / "previous.ckpt").unlink()
    with pytest.raises(InputError, match="--overwrite"):
        resume(run.folder)


def test_a_step_does_not_depend_on_micro_batches(tmp_path: Path) -> None:
    settings = ["training.precision=float64", "tolerance=1e-8", "model.training_method=dopri5"]
    found = []
    for name, micro in (("whole", 48), ("parts", 5)):
        config = tiny(*settings, f"training.micro_batch={micro}", "training.batch_size=48")
        begin(config, tmp_path / name)
        found.append(weights(tmp_path / name))
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-5, atol=1e-6)


def test_regularisers_are_one_flag_away_and_make_paths_shorter(tmp_path: Path) -> None:
    energies = []
    for weight in (0.0, 5.0):
        config = tiny(f"objective.kinetic={weight}", "training.epochs=6")
        run = begin(config, tmp_path / str(weight))
        model, data = run.model(), run.data()
        x = run.preparation(data.examples("test")[0], torch.float32)
        with torch.no_grad():
            code = model.encode(x, tolerance=1e-4, auxiliary=True)
        assert code.stats is not None
        energies.append(sum(float(s.auxiliary[0].mean()) for s in code.stats.solves))
    assert energies[1] < 0.9 * energies[0]


def test_the_average_of_weights_is_what_is_kept(tmp_path: Path) -> None:
    run = begin(tiny("training.ema=0.9", "training.select=last"), tmp_path / "run")
    state = last(run.folder)["weights"]
    kept = run.model().state_dict()
    for name, value in kept.items():
        assert torch.equal(value, state["average"][f"module.{name}"])
    assert any(not torch.equal(value, state["model"][name]) for name, value in kept.items())

    values, mean = [torch.tensor([1.0]), torch.tensor([3.0])], [torch.tensor([1.0])]
    averaging(lambda: 0.5)(mean, [values[1]], 1)  # (1 + 1) / (10 + 1) is kept at first
    assert mean[0].item() == pytest.approx(1.0 * 2 / 11 + 3.0 * 9 / 11)


def test_test_examples_are_watched_and_never_used(tmp_path: Path) -> None:
    exact = "model.trace=exact"  # evaluation takes more probes than the metrics of an epoch
    alone = begin(tiny(exact), tmp_path / "alone")
    run = begin(tiny(exact, "training.watch_test=48", "training.select=last"), tmp_path / "run")
    assert same_state(last(alone.folder), last(run.folder))
    row = rows(run.folder)[-1]
    driver = Driver(run.model(), run.preparation)
    found = evaluate(driver, *run.data().examples("test"), tolerance=1e-3)
    assert float(row["test_error_percent"]) == pytest.approx(found.error_percent)
    assert float(row["test_bits_per_dim"]) == pytest.approx(found.bits_per_dim, abs=1e-4)
    marginal = float(row["test_bits_per_dim_marginal"])
    assert marginal == pytest.approx(found.bits_per_dim_marginal, abs=1e-4)
    assert not any(name.startswith("test_") for name in rows(alone.folder)[0])


@pytest.mark.parametrize("activation", ["softplus", "tanh"])
def test_samples_that_cannot_be_solved_are_left_out(activation: str) -> None:
    config = tiny(f"model.activation={activation}", preset="density-1d")
    model = build_model(config, build_data(config)).train()
    x = torch.randn(6, 1)
    x[[1, 4]] = 1e308  # the field overflows (softplus), or the prior does (tanh)

    def attempt(kept: Tensor, stepping: str | None) -> Any:
        seeds = torch.arange(6)[kept]
        return likelihood_objective(model, x[kept], seeds=seeds, stepping=stepping)

    objective, kept = set_aside(attempt, 6, lambda found: found.losses)
    assert objective is not None and kept.tolist() == [0, 2, 3, 5]
    objective.losses.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in gradients)

    again, kept = set_aside(
        lambda kept, stepping: attempt(torch.tensor([1, 4])[kept], stepping),
        2,
        lambda found: found.losses,
    )
    assert again is None and len(kept) == 0


def test_a_gradient_that_cannot_be_solved_for_skips_its_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["model.gradient=adjoint", "model.max_steps=3", "objective.beta=1e6"]
    settings += ["tolerance=1e-4", "model.training_method=dopri5", "training.epochs=1"]
    run = begin(tiny(*settings), tmp_path / "run")
    assert "the adjoint solve of 1 of 1 failed" in caplog.text
    assert rows(run.folder)[0]["steps_skipped"] == "2"
    assert all(v.isfinite().all() for v in weights(run.folder).values())


def test_a_run_that_solves_nothing_fails_with_advice(tmp_path: Path) -> None:
    settings = ["model.max_steps=1", "training.epochs=1", "training.patience=9"]
    with pytest.raises(WorkError, match=r"no validation example could be solved.*loosen"):
        begin(tiny(*settings, "tolerance=1e-6", "evaluation.tolerance=1e-6"), tmp_path / "run")


class Spoil(Watcher):
    """Makes some training examples unsolvable."""

    def __init__(self, count: int) -> None:
        self.count = count

    def started(self, training: Any) -> None:
        x, labels = training.examples["train"]
        x = x.clone()
        x[: self.count] = 1e308
        training.examples["train"] = (x, labels)


def test_a_run_goes_on_without_the_few_it_cannot_solve(tmp_path: Path) -> None:
    run = begin(tiny(preset="density-1d"), tmp_path / "run", observer=Spoil(1))
    assert [row["samples_failed"] for row in rows(run.folder)] == ["1", "1"]
    assert all(math.isfinite(float(row["train_loss"])) for row in rows(run.folder))


def test_a_run_stops_with_advice_when_many_fail(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"loosen tolerance"):
        begin(tiny(preset="density-1d"), tmp_path / "run", observer=Spoil(5))


def test_repeated_trouble_rolls_back_with_half_the_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "infocnf")
    settings = ["training.learning_rate=1e6", "training.epochs=40", "training.warmup=0"]
    settings += ["training.clip=none", "training.ema=0", "training.schedule=constant"]
    with pytest.raises(WorkError, match="keeps diverging after 10 roll-backs"):
        begin(tiny(*settings), tmp_path / "run")
    assert "step 1 skipped" in caplog.text
    assert "rolled back to the weights before step" in caplog.text
    assert f"now {0.5**10:g} of" in caplog.text
    assert all(v.isfinite().all() for v in weights(tmp_path / "run").values())


def test_a_roll_back_can_save_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Blow(Watcher):
        """Ruins the weights once, as a wild step would."""

        def before(self, training: Any) -> None:
            if (training.epoch, training.batch) == (1, 0):
                with torch.no_grad():
                    next(training.model.flow.parameters()).fill_(float("nan"))

    settings = ["training.epochs=5", "training.checkpoint_minutes=10", "training.patience=2"]
    run = begin(tiny(*settings), tmp_path / "run", observer=Blow())
    assert "rolled back to the weights before step 0; the learning rate is halved" in caplog.text
    table = rows(run.folder)
    assert table[1]["steps_skipped"] == "2" and table[2]["steps_skipped"] == "0"
    assert float(table[-1]["train_loss"]) < float(table[0]["train_loss"])
    assert last(run.folder)["rollback"]["halvings"] == 1


def test_the_run_directory_holds_what_others_rely_on(tmp_path: Path) -> None:
    run = begin(tiny(), tmp_path / "run")
    names = {path.name for path in run.folder.iterdir()}
    assert {"config.toml", "environment.json", "metrics.csv", "data.json", "splits.npz"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    found = rows(run.folder)[-1]
    wanted = "epoch step train_bits_per_dim validation_bits_per_dim train_error_percent "
    wanted += "validation_error_percent nfe_forward nfe_backward steps_rejected tolerance_0 "
    wanted += "tolerance_2 samples_failed"
    assert set(wanted.split()) <= set(found) and all(found[name] for name in wanted.split())
    assert run.config == tiny() and run.data().describe()["sha256"] == run.facts["sha256"]


def test_data_that_changed_since_training_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    text = "a,b,label\n" + "\n".join(f"{i * 0.37 % 1},{i * 0.71 % 1},{i % 2}" for i in range(60))
    table.write_text(text)
    config = parse_config(
        {**read_tables("digits-likelihood"), "data": {"path": str(table), "test": 10}}, "test"
    )
    config = config.model_copy(update={"training": tiny().training, "model": tiny().model})
    run = begin(config, tmp_path / "run")
    table.write_text(text.replace("0.37", "0.38"))
    with pytest.raises(InputError, match="has changed"):
        Run.open(run.folder).data()


def test_a_run_that_has_begun_changes_only_what_it_may(tmp_path: Path) -> None:
    run = begin(tiny(), tmp_path / "run")
    with pytest.raises(InputError, match=r"learning_rate cannot change in .* start a new one"):
        resume(run.folder, ["training.learning_rate=1"])
    again = resume(run.folder, ["training.epochs=3"])
    assert len(rows(run.folder)) == 3 and again.config.training.epochs == 3


class Ruin(Watcher):
    """Leaves useless weights behind after one step, or makes some steps impossible."""

    def __init__(self, after: int = -1, impossible: tuple[int, ...] = ()) -> None:
        self.last, self.impossible, self.done = after, impossible, False

    def before(self, training: Any) -> None:
        self.weights = None
        if training.epoch * 3 + training.batch in self.impossible:
            self.weights = next(training.model.flow.parameters()).detach().clone()
            next(training.model.flow.parameters()).data.fill_(float("nan"))

    def after(self, training: Any) -> None:
        if self.weights is not None and training.rollback.streak:  # not where it was rolled back
            next(training.model.flow.parameters()).data.copy_(self.weights)
        if training.epoch * 3 + training.batch == self.last and not self.done:
            self.done = True
            for parameter in training.model.flow.parameters():
                parameter.data *= 1e6


class Both(Watcher):
    """Two watchers."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def started(self, training: Any) -> None:
        for watcher in reversed(self.watchers):  # the first one is told first
            watcher.started(training)


def test_ruined_weights_are_not_what_a_run_goes_back_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["training.epochs=5", "training.patience=2"]
    run = begin(tiny(*settings), tmp_path / "run", observer=Ruin(after=5))
    assert "rolled back to the weights before step 3" in caplog.text
    assert last(run.folder)["rollback"]["halvings"] == 1
    table = rows(run.folder)
    assert float(table[-1]["train_loss"]) < float(table[0]["train_loss"])


def test_a_roll_back_goes_to_the_same_place_after_an_interruption(tmp_path: Path) -> None:
    settings = ["training.epochs=3", "training.patience=2"]
    trouble = (4, 5)
    whole = begin(
        tiny(*settings),
        tmp_path / "whole",
        observer=Both(Copies(tmp_path, 3), Ruin(impossible=trouble)),
    )
    expected = last(whole.folder)
    assert expected["rollback"]["halvings"] == 1
    for number in (2, 4, 5, 6):
        shutil.copy(tmp_path / f"{number}.ckpt", whole.folder / "checkpoints" / "last.ckpt")
        resume(whole.folder, observer=Ruin(impossible=trouble))
        assert same_state(last(whole.folder), expected), f"from step {number}"


def test_a_best_checkpoint_that_was_not_copied_is_copied_on_resuming(tmp_path: Path) -> None:
    run = begin(tiny(), tmp_path / "run")
    best = run.folder / "checkpoints" / "best.ckpt"
    assert last(run.folder)["checkpointer"]["improved"]
    best.write_bytes(b"old")
    resume(run.folder, ["training.epochs=3"])
    assert intact(best)


def test_overwriting_waits_until_the_new_run_can_start(tmp_path: Path) -> None:
    folder = begin(tiny(), tmp_path / "run").folder
    before = sorted(path.name for path in folder.rglob("*"))
    with pytest.raises(InputError, match="accelerator=gpu"):
        begin(tiny("trainer.accelerator=gpu"), folder, overwrite=True)
    assert sorted(path.name for path in folder.rglob("*")) == before
    for name in ("thesis.txt", "model/thesis.txt", ".backup.2024/keep", "checkpoints/mine.ckpt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
        with pytest.raises(InputError, match="which is not of a run"):
            begin(tiny(), folder, overwrite=True)
        assert (folder / name).read_text() == "mine"
        (folder / name).unlink()
        if name.startswith(".backup"):
            (folder / ".backup.2024").rmdir()
    (folder / "model" / ".config.json.123").write_text("half")
    begin(tiny("training.epochs=1"), folder, overwrite=True)
    assert len(rows(folder)) == 1 and not (folder / "model" / ".config.json.123").exists()


def test_a_directory_is_not_a_run_because_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.toml").write_text('title = "my site"')
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "metrics.csv").write_text("mine")
    for name in ("site", "results"):
        with pytest.raises(InputError, match=r"title|not a run directory"):
            begin(tiny(), tmp_path / name, overwrite=True)
    assert (tmp_path / "results" / "metrics.csv").read_text() == "mine"


def test_a_run_in_the_current_directory_or_behind_a_link_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tiny("training.epochs=1"), tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    begin(tiny(), tmp_path / "link", overwrite=True)
    assert len(rows(tmp_path / "run")) == 2
    monkeypatch.chdir(tmp_path / "run")
    begin(tiny("training.epochs=1"), Path(), overwrite=True)
    assert len(rows(tmp_path / "run")) == 1


def test_resuming_removes_drafts_and_nothing_else(tmp_path: Path) -> None:
    folder = begin(tiny(), tmp_path / "run").folder
    mine = [folder / ".env.local", folder / "notes" / ".todo.md", folder / ".vim.d" / "x"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    draft = folder / "checkpoints" / ".last.ckpt.4711"
    draft.write_text("half")
    resume(folder)
    assert all(path.read_text() == "mine" for path in mine) and not draft.exists()


def test_a_kill_between_two_checkpoints_of_a_better_epoch_is_survived(tmp_path: Path) -> None:
    settings = ["training.validate_every=1", "training.checkpoint_minutes=10"]
    run = begin(tiny(*settings, "training.epochs=3"), tmp_path / "run")
    expected, folder = last(run.folder), run.folder / "checkpoints"
    assert checkpoints.read(folder / "previous.ckpt")["checkpointer"]["improved"]
    (folder / "last.ckpt").unlink()
    resume(run.folder)
    assert same_state(last(run.folder), expected)


def test_roll_backs_in_the_first_epoch_end_with_advice(tmp_path: Path) -> None:
    settings = ["training.batch_size=1", "model.max_steps=1", "tolerance=1e-6"]
    with pytest.raises(WorkError, match="keeps diverging"):
        begin(tiny(*settings), tmp_path / "run")


def test_a_run_cannot_be_resumed_to_fewer_epochs_than_it_has_done(tmp_path: Path) -> None:
    run = begin(tiny(), tmp_path / "run")
    before = (run.folder / "config.toml").read_bytes()
    with pytest.raises(InputError, match=r"epochs=1: it has done 2"):
        resume(run.folder, ["training.epochs=1"])
    assert (run.folder / "config.toml").read_bytes() == before


def test_every_setting_without_a_value_survives_being_written(tmp_path: Path) -> None:
    for key in keys(Config):
        try:
            config = read_config("own", [f"{key}=none"])
        except InputError:
            continue  # it must have a value
        (tmp_path / "config.toml").write_text(to_toml(config))
        assert read_config(str(tmp_path / "config.toml")) == config, key
        (tmp_path / "config.toml").write_text(explain(config))
        assert read_config(str(tmp_path / "config.toml")) == config, key
