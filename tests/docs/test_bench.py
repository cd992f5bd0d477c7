"""Every program under bench/ runs at its smoke size and ends with one JSON object, whichever peers are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "bench").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_runs_and_ends_with_one_json_object(program: Path):
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # other tests run beside it, and several threads would wait for each other
    done = subprocess.run([sys.executable, program, "--smoke", "--json"], cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout.splitlines()[-1]), dict)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_names_its_sizes(program: Path):
    text = program.read_text("utf-8")
    assert text.count("cli.parser(__doc__, full=") == text.count("cli.finish(options") - text.count("return cli.finish(options") == 1
