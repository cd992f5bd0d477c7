"""Room on the disk is asked for before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.errors import UsageError
from dreamgym.runs.files import require_space


def test_a_disk_with_room_is_accepted(tmp_path: Path):
    require_space(tmp_path, 1)


def test_a_disk_without_room_is_refused_with_what_is_needed_and_what_is_free(tmp_path: Path):
    with pytest.raises(UsageError, match=r"need about 1,000,000,000,000 MB, and [\d,]+ MB of the disk are free\. Free some, or give"):
        require_space(tmp_path, 10**18)
