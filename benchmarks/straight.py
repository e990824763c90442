"""What straighter paths save: ``python -m benchmarks.straight`` trains the 8x8 digits by matching,
then by likelihood with penalties on the paths, and writes ``docs/results/straight.md``: evaluations
of the field beside bits per dimension.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.matching import MATCHING, ROOT, Arm
from benchmarks.peers.measure import machine, publish, tell
from infocnf.cli.app import run as infocnf
from infocnf.experiments.declaration import Recipe
from infocnf.experiments.runner import ExperimentRunner
from infocnf.runs import Run

RESULT = ROOT / "docs" / "results" / "straight.md"

HEAD = """# Straighter paths

Made by `python -m benchmarks.straight`: 8x8 digits, 20 epochs of matching, then one of likelihood
with a penalty on the paths' kinetic energy or on their Jacobian (`objective.kinetic`,
`objective.jacobian`), or with codes dealt out by optimal transport in matching
(`matching.coupling`). The model after the last epoch is evaluated on the 150 validation images, at
tolerance 1e-5 and at the loosest that keeps log p within 0.001 bits/dim. One seed.
"""

COMMON = ("matching.epochs=20", "training.select=last")
DEALT = "matching.coupling=ot"
ARMS = (
    Arm("matching", "digits-matching", (MATCHING,)),
    Arm("matching, transport", "digits-matching", (MATCHING, DEALT)),
    Arm("then likelihood", "digits-matching", ()),
    Arm("then likelihood, kinetic 0.03", "digits-matching", ("objective.kinetic=0.03",)),
    Arm("then likelihood, kinetic 0.3", "digits-matching", ("objective.kinetic=0.3",)),
    Arm("then likelihood, Jacobian 0.03", "digits-matching", ("objective.jacobian=0.03",)),
)


def main() -> None:
    """Train, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "straight")
    arguments = parser.parse_args()

    runner = ExperimentRunner(arguments.out, threads=os.cpu_count() or 1, told=tell)
    lines = [
        "| | bits/dim | NFE at 1e-5 |",
        "|---|---|---|",
    ]
    for arm in ARMS:
        recipe = Recipe(arm.preset, (*COMMON, *arm.settings))
        runner.make([recipe])
        folder = runner.folder_of(recipe)
        if not (folder / "evaluation-validation.json").exists():
            infocnf(["evaluate", str(folder), "--part", "validation"])
        found = Run(folder).read_json("evaluation-validation.json")
        lines.append(f"| {arm.name} | {found['bits_per_dim']:.3f} | {found['nfe_forward']:.0f} |")
    publish(RESULT, [HEAD, machine(), "\n".join(lines)])
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
