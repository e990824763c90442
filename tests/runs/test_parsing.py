"""Settings: declared once, understood by their old names, and refused or warned about where they
mean nothing.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from infocnf import InfoCNF, LatentODE
from infocnf.cli.app import run as command
from infocnf.data import load_data
from infocnf.errors import InputError
from infocnf.matching import matching_objective
from infocnf.objectives import likelihood_objective, variational_objective
from infocnf.runs import Run, read_config
from infocnf.runs.config import Config
from infocnf.runs.parsing import idle_settings, old_names, to_toml, up_to_date

OWN = {("model", "marginals"), ("series", "separation")}  # another kind, another default
DECLARED = {
    "data": [load_data],
    "model": [InfoCNF],
    "objective": [likelihood_objective],
    "series": [LatentODE, variational_objective],
    "matching": [matching_objective],
}


@pytest.mark.parametrize("section", DECLARED)
def test_a_setting_has_the_default_of_the_argument_it_is(section: str) -> None:
    found = getattr(Config(), section)
    for source in DECLARED[section]:
        for name, parameter in inspect.signature(source).parameters.items():
            if name in type(found).model_fields and (section, name) not in OWN:
                default = parameter.default
                expected = list(default) if isinstance(default, tuple) else default
                assert getattr(found, name) == expected, name


OLD = """
tolerance = 1e-3
[model]
place = "last_scale"
probes = "rademacher"
compile = false
[matching]
confident = 0.9
transport = true
drops = [3]
drop_factor = 0.5
[training]
stages = ["matching"]
[series]
method = "dopri5"
"""


def test_settings_of_earlier_versions_are_understood_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old.toml"
    path.write_text(OLD)
    found = read_config(str(path))
    assert found.model.supervised_at == "last_scale"
    assert "model.place is now called model.supervised_at" in caplog.text
    assert (found.matching.pseudo_label_threshold, found.matching.coupling) == (0.9, "ot")
    assert (found.matching.milestones, found.matching.gamma) == ([3], 0.5)
    (tmp_path / "new.toml").write_text(to_toml(found))
    assert read_config(str(tmp_path / "new.toml")) == found
    again = read_config("digits", ["matching.transport=true", "training.drops=[2]"])
    assert again.matching.coupling == "ot" and again.training.milestones == [2]


@pytest.mark.parametrize(
    ("stages", "settings", "idle"),
    [
        (["matching"], ["training.epochs=3", "training.seed=1"], ["training.epochs"]),
        (["matching"], ["tolerance=1e-2", "matching.epochs=1"], ["tolerance"]),
        (["likelihood"], ["matching.epochs=3", "training.epochs=1"], ["matching.epochs"]),
        (["matching", "likelihood"], ["training.epochs=3", "series.kl=1"], ["series.kl"]),
        (["variational"], ["model.hidden=[3]", "series.kl=1"], ["model.hidden"]),
    ],
)
def test_settings_without_effect_are_found(
    stages: list[str], settings: list[str], idle: list[str]
) -> None:
    config = read_config("digits", [f"training.stages={stages}", *settings])
    assert idle_settings(config, settings) == idle


@pytest.mark.parametrize(
    ("given", "wrong", "hint"),
    [
        ("training.stages=['matching']", "training.epoch=3", "matching.epochs"),
        ("training.stages=['likelihood']", "training.epoch=3", "training.epochs"),
        ("training.stages=['likelihood']", "model.block=3", "model.blocks"),
        ("training.stages=['matching']", "beta=3", "matching.beta"),
    ],
)
def test_a_suggestion_has_an_effect(given: str, wrong: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{hint}'"):
        read_config("digits", [given, wrong])


POLICY = """
from infocnf.tolerances import Choice, Policy


class MyPolicy(Policy):
    def __init__(self, loose=1e-2):
        super().__init__()
        self.loose = loose

    def forward(self, block, features, seeds=None):
        return Choice(self.loose)

    def config(self):
        return {"name": self.name, "loose": self.loose}
"""


@pytest.mark.slow
def test_a_policy_of_ones_own_by_its_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from infocnf.tolerances import POLICIES

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(POLICY)
    few = ["data.limit=32", "data.validation=16", "model.hidden=[4]", "training.epochs=1"]
    own = ['tolerance.name="my_module:MyPolicy"', "tolerance.loose=3e-3", "trainer.threads=1"]
    sets = [word for setting in (*few, *own) for word in ("--set", setting)]
    assert command(["train", "digits-likelihood", *sets, "--out", "run"]) == 0
    assert "0.003" in (tmp_path / "run" / "metrics.csv").read_text()

    del POLICIES["my_module:MyPolicy"]  # as in a process that has not imported it
    monkeypatch.delitem(__import__("sys").modules, "my_module")
    with pytest.raises(InputError, match="import my_module first"):
        _ = Run.open("run").config
    (tmp_path / "my_module.py").rename(tmp_path / "away.py")
    assert command(["train", "--resume", "--out", "run", "--set", "training.epochs=2"]) == 2
    assert "my_module:MyPolicy cannot be imported" in capsys.readouterr().err
    (tmp_path / "away.py").rename(tmp_path / "my_module.py")
    arguments = ["evaluate", "run", "--learned-tolerances"]
    assert command(["--import", "my_module", *arguments]) == 0
    assert command(["--import", "no_such_module", *arguments]) == 2
    assert "no_such_module" in capsys.readouterr().err
    del POLICIES["my_module:MyPolicy"]


def test_settings_that_are_no_more_are_refused_unless_they_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('base = "spirals"\n[series]\nmethod = "rk4"\nsteps = 8\n')
    with pytest.raises(InputError, match=r"series\.method is no longer a setting"):
        read_config(str(path))
    with pytest.raises(InputError, match=r"model\.compile is no longer a setting"):
        read_config("digits", ["model.compile=true"])
    assert read_config("digits", ["model.compile=false"]) == read_config("digits")
    for word in ("true", "True"):
        assert read_config("digits", [f"matching.transport={word}"]).matching.coupling == "ot"


def test_runs_are_found_by_the_names_that_settings_had() -> None:
    old = {"model": {"place": "last_scale"}, "matching": {"transport": True, "drops": [3]}}
    assert old_names(up_to_date(old)) == old
