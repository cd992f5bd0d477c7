"""C that is compiled by the machine's own compiler when it is first needed, and kept: for what torch has no operation for on CPUs.

Nothing depends on it: without a compiler `library` says so once and gives None, and whoever asked computes with torch.
`DREAMGYM_COMPILE=0` in the environment does without, too. `CC` names the compiler; `XDG_CACHE_HOME` is where libraries are kept.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")  # never -ffast-math: it has a library turn off denormals
TRIED = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
"""The first of these that the compiler takes; without OpenMP one thread computes."""
PATIENCE = 120.0  # seconds


def library(source: Path, **constants: int) -> ctypes.CDLL | None:
    """The functions of a C file, compiled with these macros defined; None, once explained in the log, where that is not possible."""
    if os.environ.get("DREAMGYM_COMPILE", "1") == "0":
        return None
    return _library(source, tuple(sorted(constants.items())))


@cache
def _library(source: Path, constants: tuple[tuple[str, int], ...]) -> ctypes.CDLL | None:
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("%s is not compiled: no C compiler was found, so decoding is some two times slower. Install gcc or clang.", source.name)
        return None
    try:
        return ctypes.CDLL(str(_built(compiler, source, dict(constants))))
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        log.warning("%s is not compiled, so decoding is some two times slower: %s", source.name, str(told).strip()[-2000:])
        return None


def _built(compiler: str, source: Path, constants: Mapping[str, int]) -> Path:
    """The compiled library, from an earlier time if source, compiler and processor are the same."""
    macros = [f"-D{name}={value}" for name, value in constants.items()]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    key = hashlib.sha256("\0".join([source.read_text(), version, _processor(), *FLAGS, *macros]).encode()).hexdigest()[:24]
    kept = _kept() / f"{source.stem.strip('_')}-{key}.so"
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        made = Path(folder) / kept.name
        for position, more in enumerate(TRIED):
            command = [compiler, *FLAGS, *more, *macros, str(source), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode == 0:
                break
            if position == len(TRIED) - 1:
                done.check_returncode()
        os.replace(made, kept)
    return kept


def _kept() -> Path:
    """Where compiled libraries are; a place of this process alone if the user's cache can't be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dreamgym"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="dreamgym-"))


def _processor() -> str:
    """What the instructions of a library depend on: a home directory may be shared by different machines."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        told = ""
    flags = next((line for line in told.splitlines() if line.startswith(("flags", "Features"))), "")
    return " ".join([platform.machine(), platform.processor(), flags])
