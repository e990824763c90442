"""A model as two files: ``config.json`` says what it is, ``model.safetensors`` holds its weights.

Nothing in them is code. The configuration carries a digest of both files, so that a truncated or
altered one is refused before anything is built from it. Files of earlier formats are read, too:
their names are brought up to date.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from infocnf.files import check_file, write

if TYPE_CHECKING:
    from infocnf.models.base import PartitionedModel

__all__ = ["BUNDLED", "bundled", "default_dtype", "load", "plain", "restore", "save"]

FORMAT = 2
RETRIES = 5  # of reading files that a training may be replacing
CONFIG, WEIGHTS = "config.json", "model.safetensors"
BUNDLED = Path(str(files("infocnf"))) / "bundled"
"""Runs that come with the package."""

# names of format 1: arguments, and parts of the names of weights
ARGUMENTS = {"place": "supervised_at", "read": "readout", "tolerance": "training_tolerance"}
TENSORS = {".levels.thresholds": ".thresholds.values", "policy.diary.": "policy.log."}
Model = TypeVar("Model", bound="PartitionedModel")


def load(path: str | Path, **changes: Any) -> PartitionedModel:  # noqa: ANN401
    """The model of a folder with ``config.json`` and ``model.safetensors``, of a run directory that
    holds it in ``model/``, or of the package, by its name: ``digits``.

    Arguments:
        path: The folder or name.
        changes: Arguments of the model to replace, such as ``trace="exact"``; a field of one's own,
            which is code and not in the files, must be passed again.
    """
    from infocnf.models.infocnf import InfoCNF  # which itself imports this module
    from infocnf.models.latent_ode import LatentODE

    folder = bundled(path) or Path(path)
    inner = folder / "model"
    own = (folder / CONFIG).exists() or not inner.is_dir()
    folder = folder if own else inner
    content = read_files(folder)
    kind = LatentODE if name_of(content[0]) == LatentODE.__name__ else InfoCNF
    return restore(kind, content, folder, changes)


def name_of(config: bytes) -> str | None:
    """The class that a configuration names; None where it cannot be read."""
    try:
        return json.loads(config).get("model")
    except (ValueError, AttributeError, RecursionError):
        return None


def bundled(name: str | Path) -> Path | None:
    """The folder of a run that comes with the package; None for other names, and where the user has
    something of that name.
    """
    alone = Path(name).name == str(name) and not Path(name).exists()
    found = BUNDLED / str(name)
    return found if alone and (found / "config.toml").is_file() else None


def save(model: PartitionedModel, arguments: dict[str, Any], folder: Path) -> None:
    """Write a model; each file appears whole or not at all, the configuration last."""
    config, weights = files_of(model, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / WEIGHTS, weights)
    write(folder / CONFIG, config)


def files_of(model: PartitionedModel, arguments: dict[str, Any]) -> tuple[bytes, bytes]:
    """Content of the two files: configuration and weights."""
    from safetensors.torch import save as to_bytes

    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    weights = to_bytes(state)
    dtype = str(model.dtype).removeprefix("torch.")
    config = {
        "format": FORMAT,
        "model": type(model).__name__,
        "dtype": dtype,
        "arguments": arguments,
    }
    config["sha256"] = digest(config, weights)
    return (json.dumps(config, indent=2) + "\n").encode(), weights


def read_files(folder: Path) -> tuple[bytes, bytes]:
    """Content of the two files, or an error that says which is missing. Where they do not belong
    together, a training may be replacing them: they are read again after a moment.
    """
    for path in (folder / CONFIG, folder / WEIGHTS):
        check_file(path)
    for _ in range(RETRIES):
        try:
            content = (folder / CONFIG).read_bytes(), (folder / WEIGHTS).read_bytes()
        except OSError as error:
            raise ValueError(
                f"no model here: cannot read {error.filename} ({error.strerror})"
            ) from None
        if together(*content):
            break
        sleep(0.1)
    return content


def together(config: bytes, weights: bytes) -> bool:
    """Whether the content of two files belongs together; :func:`restore` tells of anything else."""
    try:
        parsed = json.loads(config)
        declared = parsed.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return True
    return declared == digest(parsed, weights)


def restore(
    kind: type[Model], content: tuple[bytes, bytes], folder: Path, changes: Mapping[str, Any]
) -> Model:
    """The model of the content of two files, in evaluation mode; a ValueError of one line for
    anything that is not one.

    Arguments:
        kind: The class it must have.
        content: Configuration and weights.
        folder: Where an error says they are.
        changes: Arguments to replace.
    """
    config, weights = content
    try:
        parsed = json.loads(config)
        declared, known = parsed.pop("sha256"), parsed["format"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        missing = isinstance(error, KeyError)
        why = f"it has no {error}" if missing else "it cannot be read as a table"
        raise ValueError(
            f"{folder / CONFIG} is not a model's configuration ({why}): save the model again"
        ) from None
    name = kind.__name__
    if known not in range(1, FORMAT + 1) or parsed.get("model") != name:
        raise ValueError(
            f"{folder / CONFIG} describes a {parsed.get('model')!r} of format {known!r}, "
            f"expected {name!r} of format {FORMAT}"
        )
    if declared != digest(parsed, weights):
        raise ValueError(
            f"{folder} is damaged: its files do not match the digest in {CONFIG}; "
            "copy or save the model again"
        )
    custom = parsed["arguments"].get("field")
    if custom is not None and "field" not in changes:
        raise ValueError(
            f"{folder} holds a model with a field of its own, {custom}: pass it, "
            "load(..., field=...)"
        )

    from safetensors.torch import load as from_bytes

    try:
        arguments, tensors = up_to_date(parsed["arguments"], from_bytes(weights), known)
        with default_dtype(getattr(torch, parsed["dtype"])):
            model = kind.from_config(arguments, **changes)
        model.load_state_dict(tensors)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{folder} does not hold {name} of this version: {reason}") from None

    return model.eval()


def up_to_date(
    arguments: Mapping[str, Any], tensors: Mapping[str, Tensor], written: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Arguments and weights of an earlier format by their present names."""
    if written == FORMAT:
        return dict(arguments), dict(tensors)
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in TENSORS.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    return {ARGUMENTS.get(name, name): value for name, value in arguments.items()}, renamed


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
    become such, and code its import path.
    """
    if callable(value):
        kind = type(value) if isinstance(value, nn.Module) else value
        return f"{kind.__module__}:{getattr(kind, '__qualname__', type(kind).__name__)}"
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
