"""What a run is: its configuration, its directory and its checkpoints."""

from infocnf.runs.directory import Run
from infocnf.runs.parsing import presets, read_config

__all__ = ["Run", "presets", "read_config"]
