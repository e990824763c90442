"""Bad configurations, files and arguments: exit code 2 and one line, before any work."""

from __future__ import annotations

import gzip
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infocnf.cli.app import run as command
from infocnf.training import begin
from tests.data.test_data import write_cifar, write_folder, write_idx
from tests.runs.tiny import tiny

TABLE = "width,height,kind\n" + "\n".join(f"{i % 7}.5,{i % 5}.25,{'ab'[i % 2]}" for i in range(60))

SETTINGS = {
    "training.epoch=3": "did you mean 'training.epochs'",
    "epochs=3": "did you mean 'training.epochs'",
    "training.epochs=-1": "greater than 0, got -1",
    "training.epochs=many": "valid integer.*'many'",
    "training.seed=-1": "training.seed.*greater than or equal to 0",
    "data.seed=99999999999999999999": "data.seed",
    "training.precision=float16": "float32.*float64.*'float16'",
    "training.learning_rate=nan": "training.learning_rate.*finite number",
    "nonsense": "key=value, got 'nonsense'",
    "model.method=rk5": "dopri5.*'rk5'",
    "model.trace=guess": "exact.*'guess'",
    "model.activation=relu": "softplus.*'relu'",
    "model.scales=9": "digits.*9",
    "model.place=[99999]": "99999 is outside",
    "model.place=nowhere": "first_scale.*'nowhere'",
    "model.hidden=[0]": "model.hidden.*greater than 0",
    "model.hidden=[65536,65536,65536,65536]": r"1.2e\+11 weights.*GB of memory, of which this",
    "model.hidden=[2147483648]": "less than or equal to 65536, got 2147483648",
    "model.blocks=65536": "model.blocks.*less than or equal to 256, got 65536",
    "tolerance.name=[]": "name must be that of a policy, got \\[\\]",
    f"training.epochs={'1' * 5000}": "training.epochs.*got '111",
    f"training.epochs=0x{'1' * 5000}": "less than or equal to 1000000000, got a number of thous",
    f"tolerance={'[' * 5000}": "must be a number or a table",
    "model.gradient=none": "model.gradient",
    "model.marginals=true": "'multiscale' does not make marginals normal",
    "tolerance=-1": "positive and finite, got -1",
    "tolerance=[1e-3]": "3 blocks.*1 tolerances",
    "tolerance.name=lerned": "fixed.*'lerned'",
    "tolerance.speed=3": "budget has no 'speed': it has nfe, error",
    'tolerance={name="learned",alpha="x"}': "alpha: Input should be a valid number, got 'x'",
    'tolerance={name="learned",samples=2.5}': "samples: .*integer, got 2.5",
    'tolerance={name="learned",per="row"}': "batch, sample, got 'row'",
    'tolerance={name="budget"}': "give one target",
    'tolerance={name="budget",nfe=0}': "positive and finite, got 0",
    'tolerance={name="random",start=1}': "between smallest=1e-06 and largest=0.01, got 1",
    "data.name=digitz": "did you mean 'digits'",
    "data.test=5000": "leaves none for train",
    "objective.beta=-2": "objective.beta",
    "evaluation.tolerance=0": "evaluation.tolerance",
    "trainer.devices=0": "trainer.devices",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begin(tiny(), tmp_path_factory.mktemp("bad") / "run").folder


def refuse(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    capsys.readouterr()
    assert command(arguments) == 2
    shown = capsys.readouterr()
    lines = shown.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("infocnf: "), shown
    assert re.search(reason, lines[0]), lines[0]
    assert not (home / "out").exists() or not any((home / "out").iterdir())


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_bad_setting_is_refused(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "digits-likelihood", "--set", setting, "--out", str(tmp_path / "out")]
    refuse(arguments, SETTINGS[setting], capsys, tmp_path)


def test_a_setting_that_an_architecture_has_not_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "digits-matching", "--set", "model.scales=2"]
    refuse([*arguments, "--out", str(tmp_path / "out")], "'unet' has no scales", capsys, tmp_path)


def spoil_image(folder: Path) -> None:
    write_folder(folder / "data")
    (folder / "data" / "bee" / "3.png").write_bytes(b"not an image")


def other_size(folder: Path) -> None:
    write_folder(folder / "data")
    Image.new("RGB", (9, 9)).save(folder / "data" / "bee" / "3.png")


def no_classes(folder: Path) -> None:
    (folder / "data").mkdir()


def empty_class(folder: Path) -> None:
    write_folder(folder / "data")
    (folder / "data" / "wasp").mkdir()


def table(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / "data.csv").write_text(change(TABLE)) and None


def arrays(**content: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "data.npz", **content)


OWN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "nothing there": (lambda f: None, "data", "does not exist"),
    "unknown kind": (lambda f: (f / "data.xyz").write_text("?"), "data.xyz", "no known kind"),
    "broken image": (spoil_image, "data", "bee/3.png is not an image"),
    "other size": (other_size, "data", "bee/3.png is 9x9 pixels but .* is 4x6"),
    "no classes": (no_classes, "data", "0 sub-folders"),
    "empty class": (empty_class, "data", "wasp holds no image"),
    "no label": (table(lambda t: t.replace("kind", "kinds")), "data.csv", "did you mean 'kinds'"),
    "words": (table(lambda t: t.replace("2.25", "tall")), "data.csv", "'height' holds words"),
    "missing": (
        table(lambda t: t.replace("6.5,", ",", 1)),
        "data.csv",
        "missing.*row 7, column 'width'",
    ),
    "no label at all": (
        table(lambda t: t.replace(",a", ",").replace(",b", ",")),
        "data.csv",
        "no example has one",
    ),
    "row numbers": (
        table(lambda t: t.replace("width", "", 1)),
        "data.csv",
        "column without a name",
    ),
    "one class": (table(lambda t: t.replace(",b", ",a")), "data.csv", "one class only, a"),
    "amounts": (
        table(lambda t: "w,kind\n" + "\n".join(f"{i % 7},{i % 30}" for i in range(60))),
        "data.csv",
        "30 classes for 60 examples: .*data.real",
    ),
    "no rows": (table(lambda t: "width,kind\n"), "data.csv", "no rows"),
    "empty file": (table(lambda t: "\n"), "data.csv", "cannot be read as a table"),
    "constant": (table(lambda t: re.sub(r"\d.25", "1.0", t)), "data.csv", "height.*constant"),
    "not parquet": (lambda f: (f / "data.parquet").write_text("no"), "data.parquet", "as a table"),
    "not npz": (lambda f: (f / "data.npz").write_text("no"), "data.npz", "not an .npz"),
    "other keys": (arrays(images=np.zeros(3)), "data.npz", "no array x .*images"),
    "no examples": (
        arrays(x=np.zeros((0, 4, 4), np.uint8), y=np.zeros(0, int)),
        "data.npz",
        "has no examples",
    ),
    "text": (
        arrays(x=np.full((9, 4, 4), "a"), y=np.arange(9) % 2),
        "data.npz",
        "not real numbers",
    ),
    "labels too few": (
        arrays(x=np.zeros((9, 4, 4), np.uint8), y=np.zeros(8, int)),
        "data.npz",
        r"y has shape \(8,\) for 9 examples",
    ),
    "images of fractions": (
        arrays(x=np.full((9, 4, 4), 0.5), y=np.arange(9) % 2),
        "data.npz",
        "not whole grey levels",
    ),
    "too many classes": (
        arrays(x=np.zeros((9, 4, 4), np.uint8), y=np.arange(9)),
        "data.npz",
        "9 classes for 9 examples",
    ),
    "pickled": (
        lambda f: (f / "data.npz").write_bytes(pickle.dumps(print)),
        "data.npz",
        "not an .npz of plain arrays",
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_bad_data_of_ones_own_is_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, name, reason = OWN[case]
    make(tmp_path)
    label = ["--set", "data.label=kind"] if name.startswith("data.csv") else []
    arguments = ["train", "--data", str(tmp_path / name), *label, "--out", str(tmp_path / "out")]
    refuse(arguments, reason, capsys, tmp_path)


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        write_idx(folder)
        path = folder / f"{name}.gz"
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])

    return make


def short_labels(folder: Path) -> None:
    write_idx(folder)
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x03\x01\x02\x03"))


def wrong_kind(folder: Path) -> None:
    write_idx(folder)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"GIF89a and so on"))


def cut_archive(folder: Path) -> None:
    path = folder / "cifar-10-binary.tar.gz"
    write_cifar(path)
    path.write_bytes(path.read_bytes()[:20_000])


def nine_classes(folder: Path) -> None:
    x = np.zeros((40, 3, 32, 32), np.uint8)
    y = np.arange(40) % 9
    np.savez(folder / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)


KNOWN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "nothing there": ("mnist", lambda f: None, "no mnist in .*train-images-idx3-ubyte is missing"),
    "truncated": ("mnist", cut("train-images-idx3-ubyte", 0.6), "cannot be read.*fetch it again"),
    "labels of another set": ("mnist", short_labels, "do not belong together"),
    "not idx": ("mnist", wrong_kind, "not an idx file"),
    "truncated archive": ("paper-cifar10-small-batch", cut_archive, "fetch it again"),
    "records of another size": (
        "paper-cifar10-small-batch",
        lambda f: write_cifar(f / "cifar-10-binary.tar.gz", cut=7),
        "data_batch_1.bin .* 30723 bytes, not records of 3073",
    ),
    "pickles": (
        "paper-cifar10-small-batch",
        lambda f: (f / "cifar-10-python.tar.gz").write_bytes(b""),
        "cifar-10-binary.tar.gz is missing .*holds pickles, which are not read",
    ),
    "nine classes": ("paper-cifar10-small-batch", nine_classes, "9 classes, cifar10 has 10"),
}


@pytest.mark.parametrize("case", KNOWN)
def test_damaged_files_of_a_known_set_are_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset, make, reason = KNOWN[case]
    make(tmp_path)
    arguments = ["train", preset, "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    refuse(arguments, reason, capsys, tmp_path)


def test_a_set_that_was_not_fetched_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFOCNF_DATA", str(tmp_path))
    arguments = ["train", "mnist", "--out", str(tmp_path / "out")]
    refuse(arguments, "infocnf data fetch mnist.*--data-dir", capsys, tmp_path)


ARGUMENTS = {
    "trian": "Did you mean 'train'",
    "train digts": "did you mean 'digits'",
    "train none.toml": "none.toml cannot be read",
    "train --bogus": "No such option: --bogus",
    "train --resume --out {home}/none": "does not exist",
    "train --resume --overwrite": "contradict",
    "train --resume --out {home}": "no config.toml",
    "train --out {home}/file.txt": "is a file",
    "train --out {home}/full": "exists: continue it with --resume",
    "train --overwrite --out {home}/full": "holds 'letter.txt', which is not of a run",
    "train --data-dir {home}/none mnist": "does not exist",
    "train {home}/broken.toml": "is not TOML",
    "train {home}/typo.toml": "did you mean 'training.epochs'",
    "evaluate": "Missing argument",
    "evaluate {home}": "no config.toml",
    "evaluate {home}/none": "does not exist",
    "evaluate {run} --tolerance 0": "between 0 and 1",
    "evaluate {run} --tolerance small": "small",
    "evaluate {run} --batch-size 0": "at least 1",
    "evaluate {run} --part tset": "train, validation, test",
    "evaluate {run} --tolerance 1e-3 --learned-tolerances": "contradict",
    "sample {run} --label 12": "one of 0, 1, .*'12'",
    "sample {run} -n 0": "at least 1",
    "sample {run} -n 10 --temperature -1": "temperature",
    "sample {run} -n 10 --steps 0": "--steps must be at least 1",
    "sample {run} -o {home}/x.bmp": r"\.png or \.npz or \.csv",
    "sample {run} -o {home}/file.csv": "--overwrite",
    "sample {run} -o {home}/full --overwrite": "must end in",
    "sample {run} -o {home}/file.txt/x.csv": "cannot be written",
    "sample {run} -n 99999999999": "at most 1,000,000",
    "sample {run} --seed -1": "--seed",
    "predict {run} {home}/large.png -o {home}/full --overwrite": "is a folder",
    "train {home}/file.csv": "use --data",
    "train {home}/loop.toml": "has itself as its base",
    "train --data {empty}": "--data is empty",
    "train {empty}": "PRESET is empty",
    "train own": "give --data PATH",
    "train --resume --out {run} --set training.batch_size=3": "batch_size cannot change",
    "train --overwrite --out {run} --set trainer.accelerator=gpu": "accelerator=gpu",
    "train --resume --out {run} --set trainer.accelerator=warp": "accelerator=warp",
    "train --data {home}/pictures --out {home}/pictures/run": "is inside the data",
    "predict {run}": "Missing argument",
    "predict {run} {home}/none.png": "does not exist",
    "predict {run} {home}/file.csv": "the model reads images",
    "predict {run} {home}/file.txt": "no known kind",
    "predict {run} {home}/full": "holds no image",
    "predict {run} {home}/large.png -o {home}/file.csv": "--overwrite",
    "predict {run} {home}/wrong.npz": r"shape \(1, 5, 5\), the model reads \(1, 8, 8\)",
    "report {home}": "no config.toml",
    "data fetch minst": "did you mean 'mnist'",
    "data fetch": "Missing argument",
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_bad_arguments_are_refused(
    arguments: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text("mine")
    (tmp_path / "file.csv").write_text("a\n1\n")
    (tmp_path / "broken.toml").write_text("[training\n")
    (tmp_path / "loop.toml").write_text(f'base = "{tmp_path}/loop.toml"')
    (tmp_path / "pictures").mkdir()
    (tmp_path / "typo.toml").write_text("[training]\nepoch = 3\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    Image.new("L", (30, 20)).save(tmp_path / "large.png")
    np.savez(tmp_path / "wrong.npz", x=np.zeros((2, 5, 5), np.uint8))
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    words = [word.format(home=tmp_path, run=trained, empty="") for word in arguments.split()]
    refuse(words, ARGUMENTS[arguments], capsys, tmp_path)
    assert (tmp_path / "full" / "letter.txt").read_text() == "mine"
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "not json"])
def test_a_damaged_model_is_refused(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begin(tiny("training.epochs=1"), tmp_path / "run").folder / "model"
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "missing":
        (folder / "config.json").unlink()
    elif damage == "not json":
        (folder / "config.json").write_text("{")
    else:
        content[-5] ^= 1
        weights.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    reason = "no model yet" if damage == "missing" else "damaged|not a model's configuration"
    refuse(["evaluate", str(tmp_path / "run")], reason, capsys, tmp_path)
