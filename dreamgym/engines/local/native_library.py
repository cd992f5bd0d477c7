"""C that is compiled by the machine's own compiler when it is first needed, and kept: for what torch has no operation for on CPUs.

Nothing depends on it: without a compiler `library` logs that once and returns None, and its caller computes with torch.
`DREAMGYM_COMPILE=0` in the environment does without, too. `CC` names the compiler; `XDG_CACHE_HOME` is where libraries are kept.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")  # never -ffast-math: it has a library turn off denormals
TRIED = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ("-mcpu=native",), ())
"""The first of these that the compiler takes and whose result can be loaded; without OpenMP one thread computes."""
PATIENCE = 120.0  # seconds


def library(source: Path, **constants: int) -> ctypes.CDLL | None:
    """The functions of a C file, compiled with these macros defined; None, once explained in the log, where that is not possible."""
    if os.environ.get("DREAMGYM_COMPILE", "1") == "0":
        return None
    return _library(source, tuple(f"-D{name}={value}" for name, value in sorted(constants.items())))


@cache
def _library(source: Path, macros: tuple[str, ...]) -> ctypes.CDLL | None:
    compiler = _compiler()
    if compiler is None:
        log.warning("%s is not compiled: no C compiler was found, so decoding is some two times slower. Install gcc or clang.", source.name)
        return None
    found: object = ""
    try:
        name = _name(source, compiler, macros)
        for folder in _folders():
            try:
                return _loaded(folder / name) or _built(source, compiler, macros, folder / name)
            except (OSError, subprocess.SubprocessError) as error:  # a full disk, a folder that may not hold programs: try the next one
                found = getattr(error, "stderr", None) or error
    except (OSError, subprocess.SubprocessError) as error:
        found = getattr(error, "stderr", None) or error
    log.warning("%s is not compiled, so decoding is some two times slower: %s", source.name, str(found).strip()[-2000:])
    return None


def _compiler() -> list[str] | None:
    """The compiler's command: `CC` with its arguments, or what there is."""
    named = os.environ.get("CC", "")
    try:
        wanted = shlex.split(named)
    except ValueError:  # a quotation that does not end
        wanted = [named]
    if wanted and shutil.which(wanted[0]):
        return wanted
    if wanted:
        log.warning("CC=%s is no program that can be found, so another compiler is looked for.", named)
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    return [found] if found else None


def _name(source: Path, compiler: Sequence[str], macros: Sequence[str]) -> str:
    """What a library is called: another one for another source, compiler, processor or set of flags."""
    version = _output_of([*compiler, "--version"])
    flags = [flag for flags in (FLAGS, *TRIED) for flag in flags]
    made_of = [source.read_text(encoding="utf-8"), version, *compiler[1:], _processor(), *flags, *macros]
    return f"{source.stem.strip('_')}-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:24]}.so"


def _output_of(command: Sequence[str]) -> str:
    """What a program prints. CalledProcessError where it fails."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE, check=True)
    return done.stdout


def _loaded(path: Path) -> ctypes.CDLL | None:
    """The library of an earlier time; None where there is none that is whole."""
    try:
        return ctypes.CDLL(str(path)) if path.exists() else None
    except OSError:
        return None


def _built(source: Path, compiler: Sequence[str], macros: Sequence[str], path: Path) -> ctypes.CDLL:
    """Compile, keep and load. The last attempt's error where none succeeds."""
    for flags in TRIED:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            try:
                _output_of([*compiler, *FLAGS, *flags, *macros, str(source), "-o", str(made), "-lm"])
                os.replace(made, path)
                return ctypes.CDLL(str(path))
            except (OSError, subprocess.CalledProcessError):
                if flags == TRIED[-1]:
                    raise
    raise AssertionError("TRIED is empty")


def _folders() -> Iterator[Path]:
    """Folders for libraries: the user's cache, or one of this process alone where that cannot be used."""
    try:
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dreamgym"
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield kept
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        pass
    own = Path(tempfile.mkdtemp(prefix="dreamgym-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    yield own


def _processor() -> str:
    """What the instructions of a library depend on: a home directory may be shared by different machines."""
    try:
        found = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        found = ""
    flags = next((line for line in found.splitlines() if line.startswith(("flags", "Features"))), "")
    return " ".join([platform.machine(), platform.processor(), flags])
