"""Pictures: one from a file, or a folder of them with a sub-folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from infocnf.data.dataset import Raw
from infocnf.data.labels import one_label, read_labels
from infocnf.errors import InputError

__all__ = ["SUFFIXES", "image_files", "is_seen", "read_folder", "read_image", "size_of"]

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
