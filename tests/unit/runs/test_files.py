"""Files that are replaced whole, also behind symbolic links, and room on the disk that is asked for before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.errors import UsageError
from dreamgym.runs.files import require_space, write_atomic, writing_lines


def test_a_disk_with_room_is_accepted(tmp_path: Path):
    require_space(tmp_path, 1)


def test_a_disk_without_room_is_refused_with_what_is_needed_and_what_is_free(tmp_path: Path):
    with pytest.raises(UsageError, match=r"need about 1,000,000,000,000 MB, and [\d,]+ MB of the disk are free\. Free some, or give"):
        require_space(tmp_path, 10**18)


def test_a_symbolic_link_stays_and_the_file_that_it_leads_to_is_replaced(tmp_path: Path):
    target, link, chain = tmp_path / "there" / "file", tmp_path / "link", tmp_path / "chain"
    link.symlink_to(target)  # relative or not, and to nothing so far
    chain.symlink_to("link")
    write_atomic(link, "first")
    assert target.read_text() == "first" and link.is_symlink()
    with writing_lines(chain) as write:
        write("second")
    assert target.read_text() == "second\n" and link.is_symlink() and chain.is_symlink()
    assert [one.name for one in target.parent.iterdir()] == ["file"], "what was written meanwhile is gone"


def test_symbolic_links_that_lead_in_a_circle_are_refused(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UsageError, match="in a circle"):
        write_atomic(tmp_path / "a", "x")
    assert (tmp_path / "a").is_symlink()
