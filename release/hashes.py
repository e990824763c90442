"""Write requirements-hashed.txt: every package of the core, by version and hash.

    python release/hashes.py torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl

Versions are those of constraints.txt, hashes those that the package registry lists. PyTorch for
CPUs alone is not in it for Linux: name the wheels, which are hashed here. Nothing large is
downloaded, nothing is built.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
WANTED = ROOT / "requirements-hashed.txt"
HEADER = """\
# Written by 'make hashes' from pyproject.toml and constraints.txt: change those.
#
#     pip install --require-hashes -r requirements-hashed.txt && pip install --no-deps .
#
# What the core needs, with all that those need in turn; not the extras. PyTorch is the build for
# CPUs. On Linux it must be one of these, which pip has to be shown by --find-links or an index:
#     {wheels}
# Elsewhere it is the public build. The public build for Linux needs CUDA, which is not listed here.
"""


def main(wheels: list[Path]) -> None:
    """Resolve, add the builds for CPUs, write."""
    pins = (ROOT / "constraints.txt").read_text()
    version = re.findall(r"^torch==(\S+)$", pins, re.MULTILINE)[0]
    if not wheels or not all(w.name.startswith(f"torch-{version}+cpu-") for w in wheels):
        sys.exit(f"hashes: name wheels of torch {version}+cpu, got {[w.name for w in wheels]}")
    found = resolve(version, needs_of(wheels[0]))
    line = f"torch=={version} \\\n"
    if found.count(line) != 1 or "://" in found:
        sys.exit(f"hashes: expected one {line!r} and no addresses in\n{found}")
    own = " \\\n".join(f"    --hash=sha256:{digest_of(wheel)}" for wheel in wheels)
    both = (
        f"torch=={version}+cpu ; sys_platform == 'linux' \\\n{own}\n"
        f"torch=={version} ; sys_platform != 'linux' \\\n"
    )
    names = "\n#     ".join(wheel.name for wheel in wheels)
    WANTED.write_text(HEADER.format(wheels=names) + found.replace(line, both))


def resolve(version: str, needs: list[str]) -> str:
    """Packages and hashes for all systems, where PyTorch needs what its build for CPUs does."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(
            f'[[dependency-metadata]]\nname = "torch"\nversion = "{version}"\n'
            f"requires-dist = {json.dumps(needs)}\n"
        )
        config.flush()
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"]
        command += ["--config-file", config.name, "--constraints", "constraints.txt"]
        command += ["--universal", "--generate-hashes", "--no-build", "--no-header"]
        command += ["--no-annotate", "--quiet"]
        return subprocess.check_output(command, cwd=ROOT, text=True)


def needs_of(wheel: Path) -> list[str]:
    """What a wheel depends on."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        return message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def digest_of(wheel: Path) -> str:
    """Its sha256."""
    with wheel.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
