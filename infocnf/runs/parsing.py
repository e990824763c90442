"""Configurations from presets, files and ``key=value`` settings, with errors that help."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from infocnf.errors import InputError, shown
from infocnf.files import LARGEST_TEXT, check_file
from infocnf.runs.config import Config, Recipe

__all__ = [
    "apply_settings",
    "differences",
    "explain",
    "keys",
    "parse_config",
    "presets",
    "read_config",
    "to_toml",
]

PRESETS = files("infocnf.runs") / "presets"
ALIASES = {  # of earlier versions
    "model.place": "model.supervised_at",
    "matching.confident": "matching.pseudo_label_threshold",
    "matching.transport": "matching.coupling",
    **{
        f"{section}.{old}": f"{section}.{new}"
        for section in ("training", "matching")
        for old, new in (("drops", "milestones"), ("drop_factor", "gamma"))
    },
}
PRESETS_BEFORE = {  # their names in earlier versions; "mnist" was the paper's
    "mnist-matching": "mnist",
    **{f"cifar10-{kind}": f"paper-cifar10-{kind}" for kind in ("small-batch", "large-batch", "2x")},
}
VALUES = {"matching.coupling": {"true": "ot", "false": "independent"}}
GONE = {  # and the only value that such a setting may still have; any for ...
    "model.probes": "rademacher",
    "model.compile": False,
    "series.method": "dopri5",
    "series.steps": None,
    "evaluation.budget": ...,
}
MOST_BASES = 20  # of a configuration, one over the other
log = logging.getLogger("infocnf")


def presets() -> list[str]:
    """Names of the presets."""
    names = (path.name for path in PRESETS.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def read_tables(source: str, above: tuple[str, ...] = (), note: bool = False) -> dict[str, Any]:
    """The tables of a preset or a file, over those of its ``base``; with a note on old names."""
    if source in PRESETS_BEFORE:
        log.warning("the preset %s is now called %s", source, PRESETS_BEFORE[source])
        source = PRESETS_BEFORE[source]
    if source in above:
        raise InputError(f"configuration {source} has itself as its base: change its base")
    if len(above) > MOST_BASES:
        raise InputError(f"configuration {above[0]} has more than {MOST_BASES} bases: merge some")
    if source.endswith(".toml"):
        check_file(Path(source), LARGEST_TEXT)
        try:
            text = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"configuration {source} cannot be read ({error})") from None
    elif source in presets():
        text = (PRESETS / f"{source}.toml").read_text()
    else:
        hint = f"to train on it use --data {source}" if Path(source).exists() else ""
        raise InputError(f"no preset is called {source!r}: {hint or suggest(source, presets())}")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # of TOML, and of numbers with thousands of digits
        raise InputError(f"configuration {source} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"configuration {source} is nested too deeply") from None
    tables = up_to_date(tables, note)
    base = tables.pop("base", None)
    return tables if base is None else merge(read_tables(str(base), (*above, source), note), tables)


def up_to_date(tables: dict[str, Any], note: bool = False) -> dict[str, Any]:
    """Tables of an earlier version by the present names of settings."""
    found: dict[str, Any] = {}
    for section, table in tables.items():
        if not isinstance(table, dict) or section == "tolerance":
            found[section] = table
            continue
        found[section] = {}
        for key, value in table.items():
            name = f"{section}.{key}"
            if name in GONE:
                check_gone(name, value)
                continue
            new = ALIASES.get(name, name)
            if note and new != name:
                log.warning("%s is now called %s", name, new)
            value = present_value(new, value)
            found[section][new.partition(".")[2]] = value
    return found


def present_value(key: str, value: object) -> object:
    """A value of an earlier version by its present name."""
    return VALUES[key].get(shown(value).strip("'").lower(), value) if key in VALUES else value


def check_gone(name: str, value: object) -> None:
    """Refuse a setting that is no more, unless it changes nothing."""
    if GONE[name] not in (value, ...):
        raise InputError(
            f"{name} is no longer a setting of the command: leave it out, got {shown(value)}"
        )


def old_names(tables: dict[str, Any]) -> dict[str, Any]:
    """Tables by the names that settings had at first: undoes :func:`up_to_date`."""
    names = {new: old.partition(".")[2] for old, new in ALIASES.items()}
    values = {new: {b: a == "true" for a, b in table.items()} for new, table in VALUES.items()}
    return {
        section: {
            names.get(f"{section}.{key}", key): values.get(f"{section}.{key}", {}).get(value, value)
            if isinstance(value, str)
            else value
            for key, value in table.items()
        }
        if isinstance(table, dict) and section != "tolerance"
        else table
        for section, table in tables.items()
    }


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables with others laid over them; a tolerance policy is replaced as a whole."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both and key != "tolerance" else value
    return merged


def read_config(source: str, settings: Iterable[str] = ()) -> Config:
    """The configuration of a preset or a ``.toml`` file, with settings ``key=value`` applied."""
    return parse_config(
        apply_settings(read_tables(source, note=True), settings), source, trusted=True
    )


def apply_settings(tables: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Tables with ``key=value`` settings laid over them.

    A policy that is named among the settings has the arguments among them, before or after its
    name, and none of the tables.
    """
    policy: dict[str, Any] = {}
    settings = list(settings)
    for setting in settings:
        key, equals, text = setting.partition("=")
        old, key = key.strip(), ALIASES.get(key.strip(), key.strip())
        if old != key:
            log.warning("%s is now called %s", old, key)
        if not equals:
            raise InputError(f"--set needs key=value, got {setting!r}")
        if key in GONE:
            check_gone(key, value_of(text.strip()))
            continue
        known = [*keys(Config), "tolerance"]
        if key not in known and not key.startswith("tolerance."):
            stages = stages_of(tables, settings)
            useful = [one for one in known if not is_idle(one, stages)]
            raise InputError(f"no setting is called {key!r}: {suggest(key, useful)}")
        value: Any = value_of(text.strip())
        value = present_value(key, value)
        if key.startswith("tolerance."):
            policy[key.removeprefix("tolerance.")] = value
            before = tables.get("tolerance")
            kept = before if isinstance(before, dict) and "name" not in policy else {}
            tables = {**tables, "tolerance": {**kept, **policy}}
            continue
        if key == "tolerance":
            policy = {}
        for part in reversed(key.split(".")):
            value = {part: value}
        tables = merge(tables, value)
    return tables


def value_of(text: str) -> object:
    """A TOML value, or the text itself where it is not TOML; None for ``none``."""
    if text.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def parse_config(tables: dict[str, Any], source: str, trusted: bool = False) -> Config:
    """A checked configuration, or an error of one line about the first thing that is wrong; one
    that is ``trusted`` may name a tolerance policy of one's own, which is imported.
    """
    try:
        return Config.model_validate(tables, context={"trusted": trusted})
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic names the member of a union it tried last: not part of the user's key
        key = ".".join(str(part) for part in first["loc"] if not str(part).startswith("function"))
        if first["type"] == "extra_forbidden":
            message = f"no setting is called {key!r}: {suggest(key, keys(Config))}"
        else:
            reason = first["msg"].removeprefix("Value error, ")
            value = "" if ", got " in reason else f", got {shown(first['input'])}"
            message = f"{key}: {reason[0].lower()}{reason[1:]}{value}"
        place = f"preset {source}" if source in presets() else source
        raise InputError(f"{message} (in {place})") from None


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All settings by their dotted names."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, by their last part first, or all of them."""
    known = list(known)
    last = [key.rsplit(".", 1)[-1] for key in known]
    near = get_close_matches(name.rsplit(".", 1)[-1], last, 1, cutoff=0.8)
    alike = [key for key, part in zip(known, last, strict=True) if part in near]
    found = get_close_matches(name, alike or known, 1, cutoff=0.0 if alike else 0.6)
    return f"did you mean {found[0]!r}?" if found else f"there are {', '.join(known)}"


def differences(one: Config, two: Config) -> list[str]:
    """Names of the settings in which two configurations differ."""

    def value(config: Config, key: str) -> object:
        found: object = config
        for part in key.split("."):
            found = getattr(found, part)
        return found

    return [key for key in keys(Config) if value(one, key) != value(two, key)]


def explain(config: Config) -> str:
    """The configuration as TOML with a word on every setting, also on those without a value."""
    import tomli_w

    lines = [tomli_w.dumps({"tolerance": config.tolerance}).rstrip()]
    for name in type(config).model_fields:
        section = getattr(config, name)
        if not isinstance(section, BaseModel):
            continue
        lines += ["", f"[{name}]  # {(type(section).__doc__ or '').splitlines()[0]}"]
        for key, inner in type(section).model_fields.items():
            value = getattr(section, key)
            shown = f"# {key} =" if value is None else one_line_toml(key, value)
            lines.append(f"{shown:<34} # {inner.description}")
    return "\n".join(lines) + "\n"


def one_line_toml(key: str, value: object) -> str:
    """A setting as TOML in one line."""
    import json

    if isinstance(value, list | str):
        return f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"


def to_toml(config: Config) -> str:
    """The configuration in full."""
    import tomli_w

    return tomli_w.dumps(without_none(config.model_dump()))


def without_none(value: Any) -> Any:  # noqa: ANN401
    """Tables without the keys that have no value, which TOML cannot write."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return value


def idle_settings(config: Config, settings: Iterable[str]) -> list[str]:
    """Those of some ``key=value`` settings that have no effect on the run at hand."""
    keys_given = (setting.partition("=")[0].strip() for setting in settings)
    named = (ALIASES.get(key, key) for key in keys_given)
    return [key for key in named if is_idle(key, config.training.stages)]


def stages_of(tables: dict[str, Any], settings: Iterable[str]) -> list[str]:
    """The stages of a run that is not checked yet."""
    training = tables.get("training")
    stages = training.get("stages") if isinstance(training, dict) else None
    for setting in settings:
        key, _, text = setting.partition("=")
        stages = value_of(text.strip()) if key.strip() == "training.stages" else stages
    return stages if isinstance(stages, list) else ["likelihood"]


def is_idle(key: str, stages: Sequence[str]) -> bool:
    """Whether a setting has no effect on a run of these stages."""
    section, _, name = key.partition(".")
    if section == "training":  # its recipe is that of the other stages
        return name in Recipe.model_fields and list(stages) == ["matching"]
    needs = {
        "matching": "matching" in stages,
        "series": "variational" in stages,
        "model": "variational" not in stages,
        "objective": "likelihood" in stages,
        "tolerance": list(stages) != ["matching"],
    }
    return not needs.get(section, True)
