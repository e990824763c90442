"""Every reader against files written by hand, damaged files, splits, preparation and downloads."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import integrate

import infocnf
from infocnf.data import CATALOGUE, Preparation, load_data
from infocnf.data.catalogue import IDX, open_entry
from infocnf.data.dataset import PARTS
from infocnf.data.download import fetch
from infocnf.data.images import read_folder, read_image
from infocnf.data.inputs import read_inputs
from infocnf.data.labels import read_labels
from infocnf.data.synthetic import mixture_log_density
from infocnf.data.tables import read_table
from infocnf.errors import InputError, WorkError
from infocnf.random import combine_seeds
from infocnf.runs import read_config
from infocnf.runs.build import build_data


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write_idx(folder: Path, packed: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 30), ("test", 8)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 4, 4), np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % 10).astype(np.uint8)
    for key, name in IDX.items():
        content = idx(arrays[key])
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_as_they_were_written(tmp_path: Path, packed: bool) -> None:
    arrays = write_idx(tmp_path, packed)
    raw = open_entry("mnist", tmp_path)
    assert raw.official == 8 and raw.levels == 256 and not raw.flip
    np.testing.assert_array_equal(raw.x[:30, 0], arrays["x_train"])
    np.testing.assert_array_equal(raw.labels["label"][30:], arrays["y_test"])


def write_cifar(path: Path, cut: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    batches = {name: rng.integers(0, 256, (10, 3073), np.uint8) for name in names}
    with tarfile.open(path, "w:gz") as archive:
        for name, records in batches.items():
            records[:, 0] = np.arange(10)
            content = records.tobytes()[: -cut or None]
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return batches


def test_the_cifar_archive_is_read_record_by_record(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    batches = write_cifar(path)
    raw = open_entry("cifar10", tmp_path)
    assert raw.x.shape == (60, 3, 32, 32) and raw.official == 10 and raw.flip
    np.testing.assert_array_equal(raw.x[10:20].reshape(10, -1), batches["data_batch_2.bin"][:, 1:])
    np.testing.assert_array_equal(raw.labels["label"], np.tile(np.arange(10), 6))
    assert raw.classes["label"][3] == "cat"

    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    path.unlink()
    np.testing.assert_array_equal(open_entry("cifar10", tmp_path).x, raw.x)


def test_no_module_of_the_package_imports_pickle() -> None:
    package = Path(infocnf.__file__).parent
    for path in package.rglob("*.py"):
        names = {
            name.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert not names & {"pickle", "cloudpickle", "joblib", "dill", "shelve"}, path


def test_arrays_with_channels_last_become_channels_first(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), np.uint8)
    y = np.array(["cat", "dog"] * 10)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    data = load_data(path=tmp_path / "own.npz", test=0.2)
    assert data.shape == (3, 6, 5) and data.raw.classes["label"] == ("cat", "dog")
    np.testing.assert_array_equal(data.raw.x[3, :, 2, 4], x[3, 2, 4])


def write_folder(folder: Path, size: tuple[int, int] = (6, 4)) -> None:
    rng = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 256, (*size, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


def test_a_folder_of_images_is_a_data_set(tmp_path: Path) -> None:
    write_folder(tmp_path / "insects")
    data = load_data(path=tmp_path / "insects", test=2, validation=2)
    assert data.shape == (3, 6, 4) and data.raw.levels == 256
    first = np.asarray(Image.open(tmp_path / "insects" / "ant" / "0.png"))
    np.testing.assert_array_equal(data.raw.x[0], first.transpose(2, 0, 1))
    assert data.raw.labels["label"].tolist() == [0] * 6 + [1] * 6


def test_images_of_all_sizes_are_cut_and_scaled_by_averages(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, (height, width) in {"ant": (24, 36), "bee": (40, 20)}.items():
        (tmp_path / name).mkdir()
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / name / "0.png")
    with pytest.raises(InputError, match=r"20x40 pixels but .* is 36x24: .* set data.size=32"):
        read_folder(tmp_path)
    raw = read_folder(tmp_path, size=4)
    assert raw.x.shape == (2, 3, 4, 4)
    for name, x in zip(("ant", "bee"), raw.x, strict=True):
        pixels = np.asarray(Image.open(tmp_path / name / "0.png")).astype(float)
        side = min(pixels.shape[:2])
        top, left = ((length - side) // 2 for length in pixels.shape[:2])
        middle = pixels[top : top + side, left : left + side].transpose(2, 0, 1)
        means = middle.reshape(3, 4, side // 4, 4, side // 4).mean((2, 4))
        np.testing.assert_allclose(x, means, atol=1)  # rounded after each direction
    facts = {"shape": [3, 4, 4], "levels": 256, "columns": []}
    np.testing.assert_array_equal(read_inputs(tmp_path, facts)[1], raw.x)
    with pytest.raises(InputError, match=r"data.size=4 is for folders of images, not for digits"):
        load_data("digits", size=4)
    with pytest.raises(InputError, match="ants does not exist"):
        load_data(path=tmp_path / "ants", size=4)


def test_a_photograph_is_read_the_way_up_it_was_taken(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 640).astype(np.uint8)
    image = Image.fromarray(np.broadcast_to(ramp, (640, 640)))  # dark on the left
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned clockwise by a quarter: dark at the top
    image.save(tmp_path / "a.jpg", exif=turned, quality=95)
    means = np.broadcast_to(ramp.reshape(8, 80).mean(1)[:, None], (8, 8))
    np.testing.assert_allclose(read_image(tmp_path / "a.jpg", 1, (8, 8))[0], means, atol=2)
    assert read_image(tmp_path / "a.jpg")[0, :, 0].argmin() < 10


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_has_classes_and_real_labels(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(3.0, 2.0, (40, 2)), columns=["width", "height"])
    frame["kind"], frame["weight"] = ["a", "b"] * 20, rng.normal(size=40)
    path = tmp_path / f"own{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    data = load_data(path=path, label=["kind", "weight"], test=10)
    assert data.raw.columns == ("width", "height")
    assert type(data.factors["kind"]).__name__ == "Categorical"
    assert type(data.factors["weight"]).__name__ == "Real"
    rows, _ = data.examples("train")
    prepared = data.preparation(rows, torch.float64)
    torch.testing.assert_close(prepared.mean(0), torch.zeros(2), atol=1e-12, rtol=0)
    torch.testing.assert_close(data.preparation.restore(prepared), rows)


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if entry.make])
def test_parts_are_disjoint_complete_and_fixed_by_the_seed(name: str) -> None:
    data, same, other = (load_data(name, seed=seed, test=100) for seed in (0, 0, 1))
    everything = np.sort(np.concatenate([data.parts[part] for part in PARTS]))
    np.testing.assert_array_equal(everything, np.arange(len(data.raw.x)))
    assert all(np.array_equal(data.parts[part], same.parts[part]) for part in PARTS)
    assert not np.array_equal(data.parts["train"], other.parts["train"])
    assert data.describe() == same.describe()


def test_images_are_dequantised_afresh_in_training_and_the_same_at_evaluation() -> None:
    raw = torch.randint(0, 17, (6, 1, 8, 8))
    prepare = Preparation(levels=17)
    first = prepare(raw, torch.float32)
    assert torch.equal(first[2:4], prepare(raw[2:4], torch.float32))
    assert torch.equal(prepare.restore(first), raw)
    one, two = (prepare(raw, torch.float32, combine_seeds(e, torch.arange(6))) for e in (1, 2))
    assert torch.equal(prepare.restore(one), raw) and not torch.equal(one, two)


def test_half_of_the_images_are_mirrored_where_the_set_wants_it() -> None:
    raw = torch.arange(4).expand(400, 1, 2, 4)
    made = Preparation(levels=4, flip=True)
    flipped = made.restore(made(raw, torch.float32, torch.arange(400)))[:, 0, 0, 0] == 3
    assert 150 < flipped.sum() < 250
    assert torch.equal(made.restore(made(raw, torch.float32)), raw)  # never at evaluation


def test_the_mixture_has_the_density_it_says() -> None:
    area, _ = integrate.quad(lambda x: np.exp(mixture_log_density(np.array(x))), -12, 12)
    assert area == pytest.approx(1.0, abs=1e-8)
    x = open_entry("mixture-1d").x[:, 0]
    assert x.mean() == pytest.approx(np.mean([-2.8, -0.9, 2.0]), abs=0.06)


def test_new_examples_are_brought_to_the_levels_of_the_model(tmp_path: Path) -> None:
    facts = {"shape": [1, 8, 8], "levels": 17, "columns": []}
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(tmp_path / "white.png")
    names, x = read_inputs(tmp_path / "white.png", facts)
    assert names == [str(tmp_path / "white.png")] and x.shape == (1, 1, 8, 8) and x.max() == 16


class Server(BaseHTTPRequestHandler):
    """Serves one file, with ranges, and breaks off after a number of bytes."""

    content = b""
    breaks: list[int] = []  # noqa: RUF012
    ranges: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Server.ranges.append(wanted or "")
        start = int(wanted.split("=")[1].rstrip("-")) if wanted else 0
        body = Server.content[start:]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: Server.breaks.pop(0)] if Server.breaks else body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("INFOCNF_DATA", str(tmp_path / "cache"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Server.content, Server.breaks, Server.ranges = bytes(range(256)) * 4000, [], []
    yield f"http://127.0.0.1:{server.server_port}/file"
    server.shutdown()
    server.server_close()


def test_a_broken_download_goes_on_where_it_stopped(address: str) -> None:
    md5 = hashlib.md5(Server.content).hexdigest()
    Server.breaks = [300_000]
    with pytest.raises(WorkError, match="continues where it broke off"):
        fetch(address, "set", "file.bin", md5)
    path = fetch(address, "set", "file.bin", md5)
    assert path.read_bytes() == Server.content
    start = int(Server.ranges[1].split("=")[1].rstrip("-"))
    assert 0 < start <= 300_000 and not path.with_name("file.bin.part").exists()
    fetch(address, "set", "file.bin", md5)
    assert len(Server.ranges) == 2  # cached


def test_a_download_of_another_content_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="is not the file it should be"):
        fetch(address, "set", "file.bin", "0" * 32)
    good = fetch(address, "set", "file.bin", hashlib.md5(Server.content).hexdigest())
    assert good.read_bytes() == Server.content


def save_image(path: Path, mode: str) -> None:
    """The same picture in several formats: a ramp of grey levels."""
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    if mode == "16 bits":
        Image.fromarray(grey.astype(np.uint16) * 257).save(path)
    elif mode == "palette":
        Image.fromarray(grey).convert("P").save(path)
    elif mode == "transparent":  # black ink on nothing
        ink = np.zeros((8, 8, 4), np.uint8)
        ink[..., 3] = 255 - grey
        Image.fromarray(ink).save(path)
    else:
        Image.fromarray(grey).save(path)


@pytest.mark.parametrize("mode", ["8 bits", "16 bits", "palette", "transparent"])
def test_a_picture_is_the_same_in_every_format(tmp_path: Path, mode: str) -> None:
    save_image(tmp_path / "picture.png", mode)
    facts = {"shape": [1, 8, 8], "levels": 256, "columns": []}
    _, x = read_inputs(tmp_path / "picture.png", facts)
    assert np.abs(x[0, 0].astype(int) - np.arange(64).reshape(8, 8) * 4).max() <= 1


def test_a_picture_of_fractions_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.random.rand(8, 8).astype(np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(InputError, match="neither 8 nor 16 bits"):
        read_inputs(tmp_path / "float.tif", {"shape": [1, 8, 8], "levels": 256, "columns": []})


def test_tables_of_other_punctuation_are_read(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.rand(20, 2) + 1.0, columns=["a b", "c"])
    frame["kind"] = ["x", "y"] * 10
    frame.to_csv(tmp_path / "comma.csv", index=False)
    frame.to_csv(tmp_path / "german.CSV", index=False, sep=";", decimal=",")
    frame.to_csv(tmp_path / "tabs.tsv", index=False, sep="\t")
    expected = load_data(path=tmp_path / "comma.csv", label="kind", test=5).raw
    for name in ("german.CSV", "tabs.tsv"):
        found = load_data(path=tmp_path / name, label="kind", test=5).raw
        np.testing.assert_allclose(found.x, expected.x)
        assert found.columns == expected.columns == ("a b", "c")


PUNCTUATION = {
    '"height, cm";"weight, kg";kind\n1.5;2.5;x\n1.7;2.1;y\n1.1;2.0;x': ["height, cm", "weight, kg"],
    '"a;b;c","d;e;f",kind\n1.5,2.5,x\n1.7,2.1,y\n1.1,2.0,x': ["a;b;c", "d;e;f"],
    "\n\na;b;kind\n1,5;2;x\n1,7;3;y\n1,1;2;x": ["a", "b"],
    "a;b;kind\n1;2;x\n1;3;y\n1,5;2;x": ["a", "b"],
}


@pytest.mark.parametrize("text", PUNCTUATION)
def test_names_in_quotes_and_blank_lines_do_not_confuse_a_table(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    raw = read_table(tmp_path / "own.csv", "kind")
    assert (
        list(raw.columns) == PUNCTUATION[text] and raw.x[2].max() == 2.0 and raw.x.shape == (3, 2)
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("height\n1,79\n1,56\n1,60", "more values than there are column names"),
        ("a;b\n1,500;x\n2,500;y", "'a' holds words"),
        ("a,a ,b\n1,2,3\n4,5,6", "two columns 'a'"),
    ],
)
def test_a_table_that_could_be_misread_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_table(tmp_path / "own.csv", "b" if ";" in text else [])


def test_whole_numbers_can_be_amounts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.random(60), "age": rng.integers(20, 60, 60)})
    frame.to_csv(tmp_path / "own.csv", index=False)
    data = load_data(path=tmp_path / "own.csv", label="age", real=["age"], test=5)
    assert type(data.factors["age"]).__name__ == "Real" and not data.raw.classes


def test_a_large_offset_does_not_round_the_data_away(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0.0, 20.0, (50, 1))
    found = []
    for offset in (0.0, 1.7e9):
        pd.DataFrame(values + offset, columns=["t"]).to_csv(tmp_path / "own.csv", index=False)
        data = load_data(path=tmp_path / "own.csv", label=[], test=10)
        rows, _ = data.examples("train")
        found.append(data.preparation(rows, torch.float32))
        restored = data.preparation.restore(found[-1])
        torch.testing.assert_close(restored, rows, rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)


def test_a_column_of_small_numbers_is_not_constant(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((40, 1)) * 1e-13
    pd.DataFrame(values, columns=["m"]).to_csv(tmp_path / "own.csv", index=False)
    assert load_data(path=tmp_path / "own.csv", label=[], test=10).preparation.scale[0] < 1e-12


def test_the_digest_knows_names_and_division(tmp_path: Path) -> None:
    text = "a,b,kind\n" + "\n".join(f"{i}.5,{i % 3}.5,{'pq'[i % 2]}" for i in range(30))
    digests = set()
    for change in (("", ""), ("a,b,", "b,a,"), ("p", "r"), (".5\n", ".6\n")):
        (tmp_path / "own.csv").write_text(text.replace(*change) if change[0] else text)
        digests.add(load_data(path=tmp_path / "own.csv", label="kind").describe()["sha256"])
    digests.add(load_data(path=tmp_path / "own.csv", label="kind", seed=1).describe()["sha256"])
    assert len(digests) == 4  # the last replacement changes nothing, the seed does


def test_all_noise_of_a_sample_is_unrelated() -> None:
    from infocnf.ode.divergence import draw_probes
    from infocnf.random import Stream, draw_uniform

    seeds, like = combine_seeds(0, torch.arange(3000)), torch.zeros(3000, 1)
    named = (Stream.FLIP, Stream.DEQUANTISE, Stream.DROPOUT, Stream.DROPOUT - 1)
    streams = [draw_uniform(seeds, like, s) for s in named]
    streams += [draw_probes(seeds, like, 1, stream=block)[:, 0] for block in (0, 1)]
    streams.append(
        Preparation(levels=1000)(torch.zeros(3000, 1, 1, 1), torch.float64, seeds)[:, 0, 0]
    )
    correlation = torch.corrcoef(torch.cat(streams, 1).T) - torch.eye(7)
    correlation[1, 6] = correlation[6, 1] = 0.0  # these are the same
    assert correlation.abs().max() < 0.08


def test_squares_of_pixels_become_their_mean(tmp_path: Path) -> None:
    x = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
    np.savez(tmp_path / "x.npz", x=x, y=np.array([0, 1, 1]))
    small = load_data(path=tmp_path / "x.npz", shrink=2, validation=1, test=1, levels=256).raw
    assert small.levels == 256 and small.x.dtype == np.uint8
    assert small.x[0, 0].tolist() == [[2, 4], [10, 12]]  # 2.5, 4.5, ...: to the even one
    with pytest.raises(InputError, match="does not divide"):
        load_data(path=tmp_path / "x.npz", shrink=3)


def write_images(folder: Path, **counts: int) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            grey = np.full((4, 4), 10 * i, dtype=np.uint8)
            Image.fromarray(grey).save(folder / name / f"{i}.png")
    return folder


def test_what_a_system_hid_in_a_folder_is_not_read(tmp_path: Path) -> None:
    write_images(tmp_path, a=3, b=3, **{".ipynb_checkpoints": 1, "__MACOSX": 1})
    (tmp_path / "a" / "._0.png").write_bytes(b"resource fork")
    raw = read_folder(tmp_path)
    assert raw.classes == {"label": ("a", "b")} and len(raw.x) == 6


def test_a_class_that_training_would_never_meet_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, a=20, b=20, c=1)
    for seed in range(20):
        config = read_config("images", [f'data.path="{tmp_path}"', f"data.seed={seed}"])
        data = load_data("own", path=tmp_path, validation=0.1, test=0.2, seed=seed)
        if 40 in data.parts["train"]:  # the only one of its class
            assert len(build_data(config).parts["train"])
        else:
            with pytest.raises(
                InputError, match=r"label 'c' has 1 examples, none of them to train"
            ):
                build_data(config)


@pytest.mark.parametrize(
    ("y", "real", "expected", "names"),
    [
        (["b", "", "a", "b"], False, [1, -1, 0, 1], ("a", "b")),
        ([b"b", b"", b"a", b"b"], False, [1, -1, 0, 1], ("a", "b")),
        ([7, -1, 7, -1], False, [1, 0, 1, 0], ("-1", "7")),
        ([True, False, True, True], False, [1, 0, 1, 1], ("False", "True")),
        ([7.0, np.nan, 3.0, 7.0], False, [1, -1, 0, 1], ("3", "7")),
        ([7.0, np.nan, 3.0, 7.0], True, [7.0, np.nan, 3.0, 7.0], ()),
        ([7.0, 3.0, 3.0, 7.0], False, [7.0, 3.0, 3.0, 7.0], ()),
        ([7.5, np.nan, 3.0, 7.0], False, [7.5, np.nan, 3.0, 7.0], ()),
        ([7, 3, 3, 7], True, [7.0, 3.0, 3.0, 7.0], ()),
    ],
)
def test_labels_are_classes_or_amounts_known_or_not(
    y: list[object], real: bool, expected: list[float], names: tuple[str, ...]
) -> None:
    labels, classes = read_labels({"kind": np.array(y)}, ["kind"] if real else [], "here")
    np.testing.assert_array_equal(labels["kind"], expected)
    assert labels["kind"].dtype == (np.int64 if names else np.float64)
    assert classes == ({"kind": names} if names else {})


@pytest.mark.parametrize(
    ("y", "real", "reason"),
    [
        (["a", "b"], ["kind"], "holds words, which are not real values"),
        ([np.nan, np.nan], [], r"no example has one.*data.label=\[\]"),
        (["", ""], [], "no example has one"),
        ([1.5, np.inf], [], "is infinite in example 1"),
        ([1j, 2j], [], "must be words, numbers or dates"),
        ([[1], [2]], [], r"one per example, got shape \(2, 1\)"),
        ([3, 3], [], "one class only, 3"),
        (list(range(40)), [], "40 classes for 40 examples: if they are real"),
        ([1, 2], ["size"], "data.real names 'size'"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(
    y: list[object], real: list[str], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        read_labels({"kind": np.array(y)}, real, "here")


def test_arrays_have_amounts_no_label_or_some_labels(tmp_path: Path) -> None:
    x, path = np.random.default_rng(0).normal(size=(40, 3)), tmp_path / "own.npz"
    np.savez(path, x=x, y=np.arange(40))
    assert load_data(path=path, label="age", real=["age"]).raw.labels["age"][5] == 5.0
    assert load_data(path=path, label=[]).factors == {}
    with pytest.raises(InputError, match=r"has one label, data.label names 2"):
        load_data(path=path, label=["a", "b"])

    np.savez(path, x=x)
    assert load_data(path=path, label=None).factors == {}
    with pytest.raises(InputError, match="has no array y"):
        load_data(path=path)

    y = np.array(["a", "b"] * 20)
    y[10:30] = ""
    np.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    data = load_data(path=path, label="kind", validation=3)
    assert (data.raw.labels["kind"][data.parts["validation"]] >= 0).all()
    assert (data.raw.labels["kind"][data.parts["train"]] < 0).sum() == 20
    assert data.parts["test"].tolist() == list(range(30, 40))
    np.savez(path, x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    with pytest.raises(InputError, match="a test example has no label"):
        load_data(path=path)


def test_images_beside_the_folders_have_no_label(tmp_path: Path) -> None:
    write_images(tmp_path, a=5, b=5)
    for i in range(4):
        Image.fromarray(np.full((4, 4), i, dtype=np.uint8)).save(tmp_path / f"loose{i}.png")
    data = load_data(path=tmp_path, label="letter", validation=2, test=2)
    assert sorted(data.raw.labels["letter"].tolist()) == [-1] * 4 + [0] * 5 + [1] * 5
    assert (data.raw.labels["letter"][data.parts["train"]] < 0).sum() == 4
    assert load_data(path=tmp_path, label=[]).factors == {}
    with pytest.raises(InputError, match=r"sub-folders of .* are classes"):
        load_data(path=tmp_path, real=["label"])


def test_a_folder_without_classes_is_learned_without_label(tmp_path: Path) -> None:
    for i in range(20):
        Image.fromarray(np.full((4, 4), i, dtype=np.uint8)).save(tmp_path / f"{i:02}.png")
    with pytest.raises(InputError, match=r"has 0 sub-folders.*data.label=\[\]"):
        load_data(path=tmp_path)
    data = load_data(path=tmp_path, label=[])
    assert data.shape == (1, 4, 4) and len(data.raw.x) == 20 and data.factors == {}


def test_labels_that_each_example_must_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"label 'kind': example 2 has none"):
        read_labels({"kind": np.array(["a", "b", ""])}, [], "here", each=True)
    rng = np.random.default_rng(0)
    y = np.array([1.5, np.nan, 0.5, 2.5])
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(4, 5, 2)), times=np.arange(5.0), y=y)
    with pytest.raises(InputError, match=r"label 'label': example 1 has none"):
        load_data(path=tmp_path / "own.npz")


def test_labels_of_a_table_keep_their_kind(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(8.0)})
    frame["yes"] = [True, False] * 4
    frame["day"] = pd.to_datetime(["2020-01-01", "2021-01-01"] * 4)
    frame["number"] = pd.array([1, 2, None, 2] * 2, dtype="Int64")
    frame.to_parquet(tmp_path / "own.parquet")
    names = ["yes", "day", "number"]
    raw = read_table(tmp_path / "own.parquet", names)
    assert raw.classes == {
        "yes": ("False", "True"),
        "day": ("2020-01-01", "2021-01-01"),
        "number": ("1", "2"),
    }
    assert raw.labels["number"].tolist() == [0, 1, -1, 1] * 2
    amounts = read_table(tmp_path / "own.parquet", names, ["yes"]).labels["yes"]
    assert amounts.tolist() == [1.0, 0.0] * 4


def test_words_of_bytes_are_read_as_utf8() -> None:
    y = np.array(["é".encode(), b"y"] * 3)
    assert read_labels({"kind": y}, [], "here")[1] == {"kind": ("y", "é")}
    with pytest.raises(InputError, match="bytes that are no words"):
        read_labels({"kind": np.array([b"\xff", b"y"] * 3)}, [], "here")


@pytest.mark.parametrize("name", ["percentile", "entropy", " "])
def test_a_label_cannot_have_the_name_of_a_prediction(name: str) -> None:
    with pytest.raises(InputError, match="a label cannot be called"):
        read_labels({name: np.array([0, 1])}, [], "here")


def test_loose_images_follow_those_of_classes(tmp_path: Path) -> None:
    write_images(tmp_path, a=3, **{"b.png": 3})
    colour = np.zeros((4, 4, 3), dtype=np.uint8)
    Image.fromarray(colour).save(tmp_path / "loose.png")
    raw = read_folder(tmp_path)
    assert raw.x.shape == (7, 1, 4, 4) and raw.labels["label"].tolist() == [0] * 3 + [1] * 3 + [-1]
    facts = {"shape": [1, 4, 4], "levels": 256, "columns": []}
    assert len(read_inputs(tmp_path, facts)[0]) == 7
    Image.fromarray(colour[:2]).save(tmp_path / "sheet.png")
    with pytest.raises(InputError, match=r"sheet.png is 4x2 pixels but .*0.png is 4x4"):
        read_folder(tmp_path)


def test_labels_are_forgotten_among_those_that_are_known(tmp_path: Path) -> None:
    y = np.array(["a", "b"] * 35)
    y[20:] = ""
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).normal(size=(70, 2)), y=y)
    load = partial(load_data, path=tmp_path / "own.npz", validation=2, test=2)
    kept = load(labelled=10)
    known = kept.raw.labels["label"][kept.parts["train"]] >= 0
    assert known.sum() == 10 and len(known) == 66
    assert len(load(labelled=10, unlabelled=False).parts["train"]) == 10
    alone = load(unlabelled=False)
    assert len(alone.parts["train"]) == 16
    assert (alone.raw.labels["label"][alone.parts["train"]] >= 0).all()
