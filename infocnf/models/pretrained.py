"""A model as two files: ``config.json`` says what it is, ``model.safetensors`` holds its weights.

Nothing in them is code. The configuration carries a digest of both files, so that a truncated or
altered one is refused before anything is built from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import nn

from infocnf.files import write

__all__ = ["Pretrained", "default_dtype", "load", "save"]

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Pretrained:
    """Adds the two files to a module that has ``config`` and ``from_config``."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors``."""
        model = cast("Any", self)
        save(model, model.config(), Path(folder))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The model of a folder that :meth:`save_pretrained` wrote, in evaluation mode."""
        return cast("Self", load(cls.__name__, cast("Any", cls).from_config, Path(folder)))

    def to_bytes(self) -> tuple[bytes, bytes]:
        """What :meth:`save_pretrained` would write into the two files."""
        model = cast("Any", self)
        return files_of(model, model.config())

    @classmethod
    def from_bytes(cls, config: bytes, weights: bytes) -> Self:
        """The model of what :meth:`to_bytes` gave, in evaluation mode."""
        build = cast("Any", cls).from_config
        return cast("Self", restore(cls.__name__, build, (config, weights), Path("this model")))


def save(model: nn.Module, arguments: dict[str, Any], folder: Path) -> None:
    """Write a model; each file appears whole or not at all, the configuration last."""
    config, weights = files_of(model, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / WEIGHTS, weights)
    write(folder / CONFIG, config)


def files_of(model: nn.Module, arguments: dict[str, Any]) -> tuple[bytes, bytes]:
    """Content of the two files: configuration and weights."""
    from safetensors.torch import save as to_bytes

    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    weights = to_bytes(state)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config = {
        "format": FORMAT,
        "model": type(model).__name__,
        "dtype": dtype,
        "arguments": arguments,
    }
    config["sha256"] = digest(config, weights)
    return (json.dumps(config, indent=2) + "\n").encode(), weights


def load(name: str, build: Callable[[dict[str, Any]], nn.Module], folder: Path) -> nn.Module:
    """The model of a folder, in evaluation mode; a ValueError of one line for anything that is not
    one.
    """
    return restore(name, build, (read(folder / CONFIG), read(folder / WEIGHTS)), folder)


def restore(
    name: str,
    build: Callable[[dict[str, Any]], nn.Module],
    files: tuple[bytes, bytes],
    folder: Path,
) -> nn.Module:
    """The model of the content of two files; ``folder`` is where an error says they are."""
    config, weights = files
    try:
        parsed = json.loads(config)
        declared, known = parsed.pop("sha256"), parsed["format"]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{folder / CONFIG} is not a model's configuration ({error!r}): save the model again"
        ) from None
    if known != FORMAT or parsed.get("model") != name:
        raise ValueError(
            f"{folder / CONFIG} describes a {parsed.get('model')!r} of format {known!r}, "
            f"expected {name!r} of format {FORMAT}"
        )
    if declared != digest(parsed, weights):
        raise ValueError(
            f"{folder} is damaged: its files do not match the digest in {CONFIG}; "
            "copy or save the model again"
        )

    from safetensors.torch import load as from_bytes

    try:
        with default_dtype(getattr(torch, parsed["dtype"])):
            model = build(parsed["arguments"])
        model.load_state_dict(from_bytes(weights))
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{folder} does not hold {name} of this version: {reason}") from None

    return model.eval()


def kind_of(folder: Path) -> str | None:
    """The class of a saved model; None where there is none that could be read."""
    try:
        return json.loads((folder / CONFIG).read_text()).get("model")
    except (OSError, ValueError, AttributeError):
        return None


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New tensors of this type, for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def plain(value: Any) -> Any:  # noqa: ANN401
    """A value in the types that JSON knows: numbers of NumPy and PyTorch, tuples and mappings
    become such.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def digest(config: dict[str, Any], weights: bytes) -> str:
    """Digest of a configuration, in a canonical form, and of the weights."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(text + b"\0" + weights).hexdigest()


def read(path: Path) -> bytes:
    """Content of a file, or an error that says which is missing."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"no model here: cannot read {path} ({error.strerror})") from None
