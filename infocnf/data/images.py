"""Images from arrays in files: idx, the CIFAR-10 archive, .npz.

Every reader returns grey levels ``(examples, channels, height, width)``, and refuses a file that is
not what it should be before anything else happens.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from infocnf.data.dataset import Raw
from infocnf.data.labels import one_label, read_labels
from infocnf.errors import InputError
from infocnf.files import check_file, digest_of

__all__ = [
    "SUFFIXES",
    "image_files",
    "is_seen",
    "read_cifar",
    "read_folder",
    "read_idx_pair",
    "read_image",
    "read_npz",
    "shrink",
    "size_of",
]


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file, packed by gzip or not."""
    check_file(path)
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}): fetch it again") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path} is not an idx file of bytes: fetch it again")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(shape) != content[3] or len(content) - start != int(np.prod(shape)):
        raise InputError(
            f"{path} is damaged: it declares {shape} bytes and holds {len(content) - start}; "
            "fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_idx_pair(folder: Path, names: dict[str, str]) -> Raw:
    """Grey images and labels of four idx files, found with or without ``.gz``."""
    paths = {part: find(folder, name) for part, name in names.items()}
    x_train, y_train, x_test, y_test = (read_idx(paths[part]) for part in PARTS_OF_PAIR)
    for images, labels, part in ((x_train, y_train, "x_train"), (x_test, y_test, "x_test")):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise InputError(
                f"{paths[part]} holds {images.shape} for labels {labels.shape}: "
                "the files do not belong together"
            )
    sources = sources_of(paths.values())
    x, y = np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test])
    found = read_labels({"label": y}, (), next(iter(sources)))
    return gather(x[:, None], found, len(x_test), sources)


PARTS_OF_PAIR = ("x_train", "y_train", "x_test", "y_test")


def find(folder: Path, name: str) -> Path:
    """A file of this name, packed or not."""
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise InputError(f"{folder / name} is missing (looked for {name} and {name}.gz)")


RECORD = 1 + 3 * 32 * 32  # bytes of an image of CIFAR-10: its label, then its three colours
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def read_cifar(path: Path) -> Raw:
    """CIFAR-10 from its binary archive, or from the folder that is in it: plain records. The python
    archive holds pickles, which can do harm, and is not read.
    """
    parts: dict[str, np.ndarray] = {}
    for name, content in cifar_members(path):
        if not content or len(content) % RECORD:
            raise InputError(
                f"{name} in {path} holds {len(content)} bytes, not records of {RECORD}: "
                "fetch it again"
            )
        parts[name] = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    missing = [name for name in BATCHES if name not in parts]
    if missing:
        raise InputError(f"{path} has no {missing[0]}: fetch it again")

    records = np.concatenate([parts[name] for name in BATCHES])
    return gather(
        records[:, 1:].reshape(-1, 3, 32, 32),
        read_labels({"label": records[:, 0]}, (), str(path)),
        len(parts[BATCHES[-1]]),
        sources_of([path]) if path.is_file() else {},
    )


def cifar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the batches."""
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name in BATCHES:
                check_file(file)
                yield file.name, file.read_bytes()
        return
    check_file(path)
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and Path(member.name).name in BATCHES:
                    stream = archive.extractfile(member)
                    assert stream is not None
                    yield Path(member.name).name, stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}): fetch it again") from None


def read_npz(
    path: Path,
    label: str | list[str] | None = "label",
    real: Sequence[str] = (),
    levels: int | None = None,
) -> Raw:
    """Arrays ``x_train y_train x_test y_test``, or ``x`` and ``y``: images of whole grey levels
    (channels first or last, or none) or rows.

    Arguments:
        path: The file.
        label: What to call the label; None for learning without.
        real: The same again if its whole numbers are real values, not classes.
        levels: Grey levels; found from the data when None.
    """
    arrays = load_npz(path)
    names = one_label(label, path)
    official = "x_train" in arrays
    pairs = (("x_train", "y_train"), ("x_test", "y_test")) if official else (("x", "y"),)
    wanted = [key for pair in pairs for key in (pair if names else pair[:1])]
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise InputError(
            f"{path} has no array {missing[0]} (it has {', '.join(arrays) or 'none'}): "
            f"save it with {' '.join(wanted)}"
        )
    for x, y in pairs if names else ():
        if arrays[y].shape != arrays[x].shape[:1]:
            raise InputError(
                f"{path}: {y} has shape {arrays[y].shape} for {len(arrays[x])} examples in {x}"
            )
    if official and arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise InputError(
            f"{path}: test examples have shape {arrays['x_test'].shape[1:]}, training examples "
            f"{arrays['x_train'].shape[1:]}: bring them to one size"
        )
    labels = {name: np.concatenate([arrays[y] for _, y in pairs]) for name in names}
    return gather(
        np.concatenate([channels_first(arrays[x], path) for x, _ in pairs]),
        read_labels(labels, real, str(path)),
        len(arrays["x_test"]) if official else 0,
        sources_of([path]),
        levels,
    )


def shrink(raw: Raw, side: int, name: str) -> Raw:
    """Images whose squares of ``side`` x ``side`` pixels became one of their mean grey level."""
    if raw.levels == 1 or any(size % side for size in raw.x.shape[2:]):
        shape = "x".join(map(str, raw.x.shape[1:]))
        raise InputError(f"data.shrink={side} does not divide {name}, whose examples are {shape}")
    count, channels, height, width = raw.x.shape
    squares = raw.x.reshape(count, channels, height // side, side, width // side, side)
    return replace(raw, x=np.rint(squares.mean((3, 5))).astype(raw.x.dtype))


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file; objects are not allowed."""
    check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise InputError(f"{path} is not an .npz of plain arrays ({error})") from None


def channels_first(x: np.ndarray, path: Path) -> np.ndarray:
    """Images ``(examples, channels, height, width)`` or rows ``(examples, features)``."""
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise InputError(
        f"{path} holds examples of shape {x.shape[1:]}: expected images of 1 or 3 channels, or rows"
    )


def gather(
    x: np.ndarray,
    labels: tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]],
    official: int,
    sources: dict[str, str],
    levels: int | None = None,
) -> Raw:
    """Examples, labels with the names of their classes, and how many at the end are for testing."""
    place = next(iter(sources), "the data")
    if not len(x):
        raise InputError(f"{place} has no examples")
    if x.dtype.kind not in "biuf":
        raise InputError(f"{place} holds examples that are not real numbers ({x.dtype})")
    if x.ndim == 4:
        if np.any(x != np.floor(x)) or x.min() < 0 or x.max() > 65535:
            raise InputError(
                f"{place} holds images that are not whole grey levels: save them as 0 .. 255"
            )
        levels = levels or (
            256 if x.dtype == np.uint8 or x.max() > 16 else max(2, int(x.max()) + 1)
        )
        if x.max() >= levels:
            raise InputError(f"{place} has grey level {x.max():g}: set data.levels to fit")
        x = x.astype(np.uint8 if levels <= 256 else np.int32)
    else:
        x, levels = finite(x, place), 1
    return Raw(x, *labels, levels, official, sources=sources)


def finite(x: np.ndarray, place: str, columns: Sequence[str] = ()) -> np.ndarray:
    """Rows of real numbers."""

    def where(row: int, column: int) -> str:
        name = repr(columns[column]) if columns else str(column + 1)
        return f"row {row + 1}, column {name}"

    try:
        rows = x.astype(np.float64)
    except (TypeError, ValueError):
        row, column = next((i, j) for (i, j), value in np.ndenumerate(x) if not is_number(value))
        raise InputError(
            f"{place}: {x[row, column]!r} in {where(row, column)} is not a number: correct it"
        ) from None
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        raise InputError(
            f"{place} has a missing or infinite value in {where(*bad[0])}: fill it in or remove "
            "the row"
        )
    return rows


def is_number(value: object) -> bool:
    """Whether a cell can be read as a number."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def sources_of(paths: Any) -> dict[str, str]:  # noqa: ANN401
    """Digests of files by name."""
    return {str(path): digest_of(path) for path in paths}


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def read_folder(
    folder: Path,
    label: str | list[str] | None = "label",
    real: Sequence[str] = (),
    size: int | None = None,
) -> Raw:
    """Images in one sub-folder per class; those beside the sub-folders have a class that is not
    known.

    Arguments:
        folder: The folder.
        label: What to call the label; None for learning without, whatever the sub-folders are.
        real: Must be empty: sub-folders are classes.
        size: Side of the square that each is cut and scaled to; None where all are of one size.
    """
    names = one_label(label, folder)
    if real:
        raise InputError(f"data.real={list(real)}: sub-folders of {folder} are classes")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and is_seen(path))
    if names and len(classes) < 2:
        raise InputError(
            f"{folder} has {len(classes)} sub-folders: make one for each class, or set "
            "data.label=[] to learn without"
        )
    files, words = [], []
    for name in classes:
        found = image_files(folder / name)
        if not found:
            raise InputError(f"{folder / name} holds no image: fill it or remove it")
        files += found
        words += [name] * len(found)
    loose = image_files(folder)
    if not files + loose:
        raise InputError(f"{folder} holds no image")
    square = None if size is None else (size, size)
    x = [read_image(path, size=square) for path in files or loose]
    if len({image.shape[0] for image in x}) > 1:  # grey among coloured ones
        x = [np.broadcast_to(image, (3, *image.shape[1:])) for image in x]
    if files:  # which decide on colour
        x += [read_image(path, x[0].shape[0], square) for path in loose]
    files, words = files + loose, words + [""] * len(loose)
    for path, image in zip(files, x, strict=True):
        if image.shape != x[0].shape:
            raise InputError(
                f"{path} is {size_of(image)} pixels but {files[0]} is {size_of(x[0])}: bring all "
                "images to one size, or set data.size=32"
            )
    labels = read_labels({name: np.array(words) for name in names}, (), str(folder))
    return Raw(np.stack(x), *labels, levels=256)


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, by name."""
    found = (path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in found if path.is_file() and is_seen(path))


def is_seen(path: Path) -> bool:
    """Whether a file or folder is the user's own work, not one that a system hid there."""
    return not path.name.startswith((".", "__MACOSX"))


def read_image(
    path: Path | IO[bytes], channels: int | None = None, size: tuple[int, int] | None = None
) -> np.ndarray:
    """Grey levels ``(channels, height, width)`` of one image, the way up it was taken.

    Arguments:
        path: The file, or its bytes.
        channels: 1 or 3; its own when None.
        size: Width and height: its middle of these proportions, scaled by averages over areas; its
            own when None.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(path, Path):
        check_file(path)
    try:
        with Image.open(path) as image:
            if size is not None:  # spares most of the work of unpacking a large photograph
                image.draft(None, (4 * max(size), 4 * max(size)))
            found = ImageOps.exif_transpose(image)
            if found.mode[0] in "IF":  # Pillow would clip what is above 255 to white
                found = Image.fromarray(eight_bits(np.asarray(found), path))
            grey = channels == 1 or (channels is None and found.mode in ("1", "L", "LA"))
            if "A" in found.getbands() or "transparency" in found.info:
                paper = Image.new("RGBA", found.size, "white")
                found = Image.alpha_composite(paper, found.convert("RGBA"))
            found = found.convert("L" if grey else "RGB")
            if size is not None:
                found = ImageOps.fit(found, size, Image.Resampling.BOX)
            array = np.asarray(found)
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError):
        raise InputError(f"{path} is not an image that can be read: remove it") from None
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def eight_bits(pixels: np.ndarray, path: Path | IO[bytes]) -> np.ndarray:
    """Grey levels of 16 bits as 8 bits."""
    if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > 65535:
        raise InputError(f"{path} holds neither 8 nor 16 bits per pixel: save it with 8")
    return np.rint(pixels / 257.0).astype(np.uint8)


def size_of(image: np.ndarray) -> str:
    """Width and height in words."""
    return f"{image.shape[2]}x{image.shape[1]}"
