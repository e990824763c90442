"""Which data sets there are, where they come from, and how a name or a path becomes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from infocnf.data import images, series, synthetic
from infocnf.data.dataset import Dataset, Raw, split
from infocnf.data.download import cached, fetch
from infocnf.data.tables import TABLES, read_table
from infocnf.errors import InputError

__all__ = ["CATALOGUE", "Entry", "entry_of", "fetch_entry", "is_ready", "load_data", "open_entry"]


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue.

    Arguments:
        title: What it is, in a few words.
        make: Makes it without files.
        read: Reads it from a folder that holds ``files``.
        address: Where its files are.
        files: Names of the files and their MD5 digests.
        classes: Names of the classes, where the numbers have names.
        flip: Whether a mirrored example is as good as the example.
        note: Where the examples come from and how they may be used.
        series: Whether the examples are series.
    """

    title: str
    make: Callable[[], Raw] | None = None
    read: Callable[[Path], Raw] | None = None
    address: str = ""
    files: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()
    flip: bool = False
    note: str = ""
    series: bool = False


def digits() -> Raw:
    """The handwritten digits inside scikit-learn: 1,797 images of 8x8 pixels, 17 grey levels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = found.images.astype(np.uint8)[:, None]
    names = tuple(str(digit) for digit in range(10))
    return Raw(x, {"label": found.target.astype(np.int64)}, {"label": names}, levels=17)


IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def idx_files(*digests: str) -> tuple[tuple[str, str], ...]:
    """Names and digests of the four idx files."""
    return tuple((f"{name}.gz", md5) for name, md5 in zip(IDX.values(), digests, strict=True))


def read_idx(folder: Path) -> Raw:
    """A set of four idx files."""
    return images.read_idx_pair(folder, IDX)


def read_cifar10(folder: Path) -> Raw:
    """CIFAR-10 from its archive or its folder."""
    for name in ("cifar-10-binary.tar.gz", "cifar-10-batches-bin"):
        if (folder / name).exists():
            return images.read_cifar(folder / name)
    pickled = [
        n for n in ("cifar-10-python.tar.gz", "cifar-10-batches-py") if (folder / n).exists()
    ]
    why = f" ({pickled[0]} holds pickles, which are not read)" if pickled else ""
    raise InputError(f"{folder / 'cifar-10-binary.tar.gz'} is missing{why}")


CATALOGUE: dict[str, Entry] = {
    "digits": Entry("handwritten digits, 8x8, 17 grey levels, 1,797 images", make=digits),
    "mnist": Entry(
        "handwritten digits, 28x28, 70,000 images",
        read=read_idx,
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files=idx_files(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        note="LeCun, Cortes, Burges",
    ),
    "fashion_mnist": Entry(
        "articles of clothing, 28x28, 70,000 images",
        read=read_idx,
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=idx_files(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        classes=(
            "T-shirt",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "boot",
        ),
        note="Zalando Research, MIT licence",
    ),
    "cifar10": Entry(
        "coloured pictures of ten kinds, 32x32, 60,000 images",
        read=read_cifar10,
        address="https://www.cs.toronto.edu/~kriz/",
        files=(("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        classes=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        flip=True,
        note="Krizhevsky 2009",
    ),
    "mixture-1d": Entry("the paper's three Gaussians on a line", make=synthetic.mixture),
    "moons-2d": Entry("two half moons in the plane", make=synthetic.moons),
    "rings-2d": Entry("two rings in the plane", make=synthetic.rings),
    "spirals": Entry(
        "the paper's spirals with noise: 5,000 + 5,000 series of 200 points",
        make=synthetic.spirals,
        series=True,
    ),
    "japanese_vowels": Entry(
        "two vowels of nine speakers: 270 + 370 series of 12 channels",
        read=series.read_japanese_vowels,
        note="Kudo, Toyama, Shimbo; UCI, CC BY 4.0; from a file of your own",
        series=True,
    ),
    "checkerboard-2d": Entry("the dark squares of a board", make=synthetic.checkerboard),
}


def entry_of(name: str) -> Entry:
    """The entry of a name, or an error with the nearest one."""
    if name not in CATALOGUE:
        near = get_close_matches(name, CATALOGUE, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CATALOGUE)}"
        raise InputError(f"no data set is called {name!r}: {hint}")
    return CATALOGUE[name]


def is_ready(name: str) -> bool:
    """Whether a data set can be used without a download."""
    entry = entry_of(name)
    if entry.make is not None:
        return True
    return bool(entry.files) and all(cached(name, file, md5) for file, md5 in entry.files)


def fetch_entry(name: str, progress: bool = False) -> list[Path]:
    """The files of a data set, downloaded where they are not there yet."""
    entry = entry_of(name)
    if not entry.files:
        raise InputError(
            f"{name} cannot be fetched: put {name}.npz into a folder and give it as --data-dir"
        )
    return [
        fetch(f"{entry.address}{file}", name, file, md5, progress=progress)
        for file, md5 in entry.files
    ]


def open_entry(name: str, folder: Path | None = None) -> Raw:
    """A data set of the catalogue, from a folder of the user's or from where it was fetched to."""
    entry = entry_of(name)
    if entry.make is not None:
        return entry.make()
    assert entry.read is not None
    if folder is None:
        if not entry.files:
            raise InputError(f"{name} is not here: point --data-dir at a folder with {name}.npz")
        if not is_ready(name):
            raise InputError(
                f"{name} is not here yet: run 'infocnf data fetch {name}', "
                "or point --data-dir at its files"
            )
        raw = entry.read(fetch_entry(name)[0].parent)
    else:
        raw = open_folder(name, entry, folder)
    if entry.series:
        return raw
    classes = {"label": entry.classes} if entry.classes else raw.classes
    if len(classes.get("label", ())) != len(raw.classes.get("label", ())):
        found = len(raw.classes.get("label", ()))
        raise InputError(f"{folder or name} has {found} classes, {name} has {len(entry.classes)}")
    return replace(raw, classes=classes, flip=entry.flip)


def open_folder(name: str, entry: Entry, folder: Path) -> Raw:
    """A data set from files of the user's own: as published, or as ``.npz``."""
    assert entry.read is not None
    if entry.series and folder.exists():
        return entry.read(folder)
    if folder.is_file():
        return images.read_npz(folder) if folder.suffix == ".npz" else entry.read(folder.parent)
    if not folder.is_dir():
        raise InputError(f"--data-dir {folder} does not exist")
    found = [
        path
        for pattern in (f"{name}.npz", f"{name}_*.npz")
        for path in sorted(folder.glob(pattern))
    ]
    if found:
        return images.read_npz(found[0])
    try:
        return entry.read(folder)
    except InputError as error:
        raise InputError(f"no {name} in {folder} (nor a {name}.npz): {error}") from None


def open_path(
    path: Path,
    label: str | list[str] | None,
    real: Sequence[str],
    levels: int | None,
    series_column: str | None,
    time: str,
    size: int | None,
) -> Raw:
    """A user's own data: a folder of images, ``.npz``, ``.csv`` or ``.parquet``."""
    if path.is_dir():
        return images.read_folder(path, label, real, size)
    if series_column is not None and path.suffix.lower() in TABLES:
        return series.read_series_table(path, series_column, time, label, real)
    if series.is_series_file(path):
        return series.read_series_npz(path, label, real)
    if path.suffix.lower() == ".npz":
        return images.read_npz(path, label, real, levels)
    if path.suffix.lower() in TABLES:
        return read_table(path, label, real)
    what = "is of no known kind" if path.exists() else "does not exist"
    raise InputError(
        f"{path} {what}: give a folder with one sub-folder of images per class, "
        "or a .npz, .csv or .parquet file"
    )


def kind_of(path: Path, series_column: str | None = None) -> str:
    """What a user's own data is, by a first look: ``images``, ``series`` or ``rows``."""
    if path.is_dir():
        return "images"
    if series_column is not None or series.is_series_file(path):
        return "series"
    if path.suffix.lower() == ".npz" and path.is_file():
        arrays = images.load_npz(path)
        examples = [arrays[name] for name in ("x", "x_train") if name in arrays]
        return "images" if any(x.ndim > 2 for x in examples) else "rows"
    return "rows"


def load_data(
    name: str = "digits",
    *,
    path: str | Path | None = None,
    directory: str | Path | None = None,
    label: str | list[str] | None = "label",
    real: Sequence[str] = (),
    levels: int | None = None,
    series: str | None = None,
    time: str = "time",
    size: int | None = None,
    shrink: int = 1,
    flip: bool | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    limit: int | None = None,
    labelled: int | None = None,
    unlabelled: bool = True,
) -> Dataset:
    """Examples with labels, divided by a seed.

    Arguments:
        name: Name in the catalogue; not looked at where there is a path.
        path: The user's own data.
        directory: Folder with the files of a set of the catalogue.
        label: Label column or columns of a table; what to call that of images; none: [].
        real: Those of them whose whole numbers are real values, not classes.
        levels: Grey levels of ``.npz`` images; found from the data when None.
        series: Column of a long table that says which series a row belongs to.
        time: Its column of times.
        size: Side of the square that images of a folder are cut and scaled to.
        shrink: Side of the squares of pixels that become one, their mean.
        flip: Whether mirrored images are as good; as the set wants it when None.
        validation: Size of the validation part, a fraction or a number.
        test: Size of the test part, where there is no official one.
        seed: Seed of the division.
        limit: How many training and test examples to use at most, for a quick look.
        labelled: How many training examples keep their labels; all when None.
        unlabelled: Whether the others train without.
    """
    if size is not None and (path is None or Path(path).is_file()):
        raise InputError(
            f"data.size={size} is for folders of images, not for {path or name}: leave it out"
        )
    if path is not None:
        raw = open_path(Path(path), label, real, levels, series, time, size)
        name = Path(path).name
    else:
        raw = open_entry(name, None if directory is None else Path(directory))
    if shrink > 1:
        raw = images.shrink(raw, shrink, name)
    if flip is not None:
        raw = replace(raw, flip=flip)
    parts = split(raw, validation, test, seed, name)
    if limit is not None:
        parts = {part: indices[:limit] for part, indices in parts.items()}

    data = Dataset(name, raw, parts)
    keep_all = labelled is None and unlabelled
    return data if keep_all else data.forgetting(labelled, unlabelled)
