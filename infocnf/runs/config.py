"""What a run is: frozen, unknown keys refused, every number with its bounds.

A configuration is read from TOML (a preset of the package or a file), changed by ``key=value``
settings, and written in full into the run directory. Defaults are the paper's small-batch recipe; a
setting that is an argument of the library has its default there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from infocnf.data import load_data
from infocnf.errors import shown
from infocnf.matching import matching_objective
from infocnf.models import InfoCNF, LatentODE
from infocnf.objectives import likelihood_objective, variational_objective
from infocnf.tolerances import policy_class, policy_from_config

__all__ = ["Config", "Recipe", "TrainerConfig"]

MOST = 10**9  # of anything that is counted
Positive = Annotated[int, Field(gt=0, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Width = Annotated[int, Field(gt=0, le=2**16)]
Widths = Annotated[list[Width], Field(max_length=64)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Part = Annotated[float, Field(gt=0, le=1)]


def of(source: Callable[..., Any], name: str, description: str, **bounds: Any) -> Any:  # noqa: ANN401
    """A setting whose default is that of an argument of a function or class."""
    default = signature(source).parameters[name].default
    value = list(default) if isinstance(default, tuple) else default
    return Field(value, description=description, **bounds)


of_data, of_flow, of_series = (partial(of, s) for s in (load_data, InfoCNF, LatentODE))
of_likelihood, of_matching, of_bound = (
    partial(of, s) for s in (likelihood_objective, matching_objective, variational_objective)
)


class Section(BaseModel):
    """A table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class DataConfig(Section):
    """Which examples, and how they are divided."""

    name: str = of_data("name", "a set of the catalogue; see 'infocnf data list'")
    path: str | None = of_data("path", "own data: folder of class folders, .npz, .csv, .parquet")
    directory: str | None = of_data("directory", "folder with the files of a catalogue set")
    label: str | list[str] = of_data("label", "column(s) of a table; a name for images; []: none")
    real: list[str] = of_data("real", "labels of whole numbers that are not classes")
    levels: Annotated[int, Field(ge=2, le=65536)] | None = of_data(
        "levels", "grey levels of .npz images; found from the data when left out"
    )
    series: str | None = of_data(
        "series", "column of a long table that says which series a row belongs to"
    )
    time: str = of_data("time", "its column of times")
    size: Annotated[int, Field(ge=2, le=4096)] | None = of_data(
        "size", "side of the square that images of a folder are cut and scaled to"
    )
    shrink: Positive = of_data("shrink", "side of the squares of pixels that become one")
    flip: bool | None = of_data("flip", "mirror images in training; as the set wants it")
    validation: Share = of_data("validation", "validation part: a fraction, or a number")
    test: Share = of_data("test", "test part where there is no official one")
    limit: Positive | None = of_data("limit", "use at most so many examples of each part")
    labelled: Positive | None = of_data(
        "labelled", "training examples that keep their labels; all when left out"
    )
    unlabelled: bool = of_data("unlabelled", "whether the others train without")
    seed: Seed = of_data("seed", "seed of the division")

    @field_validator("label", mode="before")
    @classmethod
    def no_label(cls, value: object) -> object:
        """None means no label; TOML has no word for it but an empty list."""
        return [] if value is None else value


class ModelConfig(Section):
    """The flow; see :class:`infocnf.InfoCNF` for each of these."""

    supervised: float = of_flow(
        "supervised", "fraction of the code that knows the labels", ge=0, le=1
    )
    supervised_at: str | list[int] = of_flow(
        "supervised_at", "first_scale, last_scale, every_scale, or indices"
    )
    architecture: str = of_flow("architecture", "auto, multiscale, flat, unet, residual")
    trace: str = of_flow("trace", "auto, exact, hutchinson")
    scales: Positive | None = of_flow("scales", "as many as the size allows when left out")
    blocks: Annotated[int, Field(gt=0, le=256)] = of_flow(
        "blocks", "blocks before and after each squeeze"
    )
    hidden: Widths = of_flow("hidden", "widths of each field's hidden layers; []: by the shape")
    activation: str = of_flow("activation", "softplus, tanh")
    time: str = of_flow("time", "concat; concat_squash (flat); log_snr (unet, residual)")
    alpha: float = of_flow("alpha", "margin of the logit at the data end of images")
    probe_count: Width = of_flow("probe_count", "number of probes of the trace")
    method: str = of_flow("method", "dopri5, tsit5, bosh3, heun, euler, midpoint, rk4")
    training_method: str | None = of_flow("training_method", "another adaptive method for training")
    steps: Positive | None = of_flow("steps", "steps of a method without error estimate")
    max_steps: Positive = of_flow("max_steps", "attempted steps until a sample is given up")
    gradient: str = of_flow("gradient", "checkpoint, backprop, adjoint")
    dropout: float = of_flow("dropout", "dropout before the classifiers", ge=0, lt=1)
    marginals: bool = Field(
        False, description="make each pixel or column normal by its histogram (unet, residual)"
    )
    whiten: bool = of_flow("whiten", "whiten 2x2 patches after that (unet)")
    separation: Weight | Literal["auto"] = of_flow(
        "separation", "how far apart labels start in the code; matching needs it; auto: by its size"
    )


class ObjectiveConfig(Section):
    """What is minimised: bits per dimension + beta cross-entropy + penalties."""

    beta: Weight = of_likelihood("beta", "weight of the cross-entropy")
    kinetic: Weight = of_likelihood("kinetic", "weight of the paths' kinetic energy")
    jacobian: Weight = of_likelihood("jacobian", "weight of the fields' squared Jacobian norm")


class SeriesConfig(Section):
    """The latent ODE and its objective, for series; see :class:`infocnf.LatentODE`."""

    supervised: float = of_series(
        "supervised", "fraction of the state that knows the labels; 0: none does", ge=0, le=1
    )
    latent: Width = of_series("latent", "size of the hidden state")
    units: Width = of_series("units", "size of the encoder's recurrent state")
    hidden: Widths = of_series("hidden", "widths of the field's hidden layers")
    decoder: Width = of_series("decoder", "width of the decoder's hidden layer")
    encoder: str = of_series("encoder", "rnn, gru, ode_rnn")
    noise: Share | None = of_series(
        "noise", "deviation of the observations, in units of the model; learned"
    )
    max_steps: Positive = of_series("max_steps", "attempted steps until a series is given up")
    dropout: float = of_series("dropout", "dropout before the classifiers", ge=0, lt=1)
    # not the class's own default, 0: codes of a run are large enough for labels to lie apart
    separation: Weight = Field(
        2.0, description="how far apart labels are in the fixed prior; 0: the prior is learned"
    )
    shortest: Part = of_bound(
        "shortest", "least share of a series from which training encodes, at random, the state"
    )
    kl: Weight = of_bound("kl", "weight of the divergence of the unsupervised code")
    kl_supervised: Weight = of_bound("kl_supervised", "weight of that of the supervised code")
    beta: Weight = of_bound("beta", "weight of the cross-entropy of labels")
    draws: Positive = Field(10, description="draws of the hidden state in an evaluation")


class Recipe(Section):
    """How an objective is minimised."""

    epochs: Positive = Field(400, description="passes through the training part")
    min_steps: Count = Field(0, description="more epochs where these would be fewer steps")
    batch_size: Positive = Field(900, description="examples per step, over all processes")
    micro_batch: Positive | None = Field(None, description="examples solved at a time, per process")
    optimizer: Literal["adam", "muon"] = Field(
        "adam", description="adam, or muon: orthogonal steps of matrices, Adam for the rest"
    )
    learning_rate: Share = Field(1e-3, description="of the flow, its prior and classifier")
    weight_decay: Weight = Field(0.0, description="decoupled weight decay (AdamW)")
    warmup: Count = Field(0, description="steps until the full learning rate")
    schedule: Literal["constant", "cosine"] = Field("constant", description="constant, cosine")
    milestones: list[Positive] = Field([], description="epochs after which the rate drops")
    gamma: Part = Field(0.1, description="factor of the rate at each milestone")
    clip: Share | None = Field(None, description="largest norm of a step's gradient")
    ema: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="decay of the moving average of weights; 0: none"
    )
    validate_every: Positive = Field(1, description="epochs between validations")
    precision: str = Field("float32", description="in which it computes")


class MatchingConfig(Recipe):
    """The stage of flow matching, where there is one: no simulation, one evaluation per step."""

    epochs: Positive = Field(100, description="passes through the training part")
    batch_size: Positive = Field(64, description="examples per step, over all processes")
    learning_rate: Share = Field(4e-3, description="of the flow")
    warmup: Count = Field(50, description="steps until the full rate")
    schedule: Literal["constant", "cosine"] = Field("cosine", description="constant, cosine")
    ema: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.995, description="decay of the moving average of weights; 0: none"
    )
    validate_every: Positive = Field(
        10**6, description="epochs between exact validations; the last epoch has one anyway"
    )
    beta: Weight = of_matching("beta", "weight of labels read in one step, if all are known")
    end: Weight = of_matching("end", "weight of the error at the data end, without noise")
    share: Part = of_matching("share", "share of a batch whose labels are read")
    times: Literal["uniform", "logit_normal", "data", "detail"] = of_matching(
        "times", "distribution of times: uniform, logit_normal, data, detail"
    )
    erase: float = of_matching(
        "erase", "share of an example that is noise where labels are read", ge=0, lt=1
    )
    shift: Annotated[int, Field(ge=0, le=32)] = of_matching(
        "shift", "pixels by which images are moved where labels are read"
    )
    precision: Literal["float32", "bfloat16", "auto"] = Field(
        "float32", description="of the network: float32; bfloat16; auto: that where it is fast"
    )
    pseudo_label_threshold: float = of_matching(
        "pseudo_label_threshold",
        "probability from which a guessed class counts as known; 1: never",
        gt=0.5,
        le=1,
    )
    coupling: Literal["independent", "ot"] = of_matching(
        "coupling", "independent; ot: codes dealt out by optimal transport"
    )
    sharpness: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="how firmly the flow decides for a label afterwards; 1: as matched"
    )
    refit: Count = Field(
        2000, description="examples to whose codes the prior is fitted afterwards; 0: none"
    )


class TrainingConfig(Recipe):
    """How the objective is minimised, and what is common to all stages."""

    stages: list[Literal["matching", "likelihood", "variational"]] = Field(
        ["likelihood"],
        description="what is done, in order: matching, likelihood; variational for series",
    )
    policy_learning_rate: Share = Field(1e-2, description="of the gates of learned tolerances")
    precision: Literal["float32", "float64"] = Field("float32", description="float32, float64")
    seed: Seed = Field(0, description="seed of weights, order and noise")
    select: Literal["best", "last"] = Field("best", description="model to keep: best, last")
    checkpoint_minutes: Weight = Field(10.0, description="minutes between checkpoints in an epoch")
    patience: Positive = Field(3, description="bad steps in a row until a roll-back")
    watch_test: Count = Field(
        0, description="test examples whose metrics are recorded, too, and never used"
    )

    @field_validator("stages")
    @classmethod
    def check_stages(cls, value: list[str]) -> list[str]:
        """Each at most once, matching first."""
        if value not in (["matching"], ["likelihood"], ["matching", "likelihood"], ["variational"]):
            raise ValueError(
                'must be ["matching"], ["likelihood"], ["matching", "likelihood"] or, for series, '
                f'["variational"], got {value}'
            )
        return value


class EvaluationConfig(Section):
    """How validation and evaluation solve."""

    tolerance: Share = of_flow("tolerance", "tolerance of the solver")
    batch_size: Positive = Field(
        500, description="examples solved at a time; changes results by rounding only"
    )
    limit: Positive | None = Field(
        None, description="examples whose likelihood is evaluated; all when left out"
    )


class TrainerConfig(Section):
    """Where it runs."""

    accelerator: str = Field("auto", description="auto, cpu, gpu: as Lightning Fabric names them")
    devices: Positive = Field(1, description="processes on each node")
    nodes: Positive = Field(1, description="nodes")
    threads: Positive | None = Field(None, description="threads per process; PyTorch's own choice")


class Config(Section):
    """A run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    tolerance: dict[str, Any] = Field(
        {"name": "fixed", "tolerance": 1e-5},
        validate_default=True,
        description="in training: a number, or a policy (fixed, per_block, schedule, random, "
        "budget, learned, my_module:MyPolicy) and its arguments",
    )
    objective: ObjectiveConfig = ObjectiveConfig()
    series: SeriesConfig = SeriesConfig()
    training: TrainingConfig = TrainingConfig()
    matching: MatchingConfig = MatchingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    trainer: TrainerConfig = TrainerConfig()

    @field_validator("tolerance", mode="before")
    @classmethod
    def check_tolerance(cls, value: object, info: ValidationInfo) -> dict[str, Any]:
        """A policy's name and arguments; a number means a fixed tolerance, a list one per block."""
        if isinstance(value, int | float):
            value = {"name": "fixed", "tolerance": value}
        if isinstance(value, list):
            value = {"name": "per_block", "tolerances": value}
        if not isinstance(value, dict):
            raise ValueError(f"must be a number or a table with a name, got {shown(value)}")
        named = {"name": "fixed", **value}
        if not isinstance(named["name"], str):
            raise ValueError(f"name must be that of a policy, got {shown(named['name'])}")
        check_arguments(named, bool((info.context or {}).get("trusted")))
        return policy_from_config(named).config()


def check_arguments(policy: dict[str, Any], trusted: bool) -> None:
    """Refuse arguments that a policy does not have, or of a type it cannot use."""
    given = {name: value for name, value in policy.items() if name != "name"}
    kind = policy_class(policy["name"], trusted)
    hints, parameters = get_type_hints(kind.__init__), signature(kind).parameters
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if p.default is p.empty else p.default)
        for name, p in parameters.items()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    strict = ConfigDict(extra="forbid", arbitrary_types_allowed=True, strict=True)
    try:
        create_model(policy["name"], __config__=strict, **fields)(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name, known = first["loc"][0], ", ".join(fields)
        if first["type"] == "extra_forbidden":
            raise ValueError(f"{policy['name']} has no {name!r}: it has {known}") from None
        raise ValueError(f"{name}: {first['msg']}, got {shown(given[str(name)])}") from None
