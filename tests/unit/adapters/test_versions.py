"""Packages in versions that an adapter does not know are refused before work starts."""

from __future__ import annotations

import importlib.metadata

import pytest

from dreamgym.adapters.versions import check_version
from dreamgym.errors import MissingExtra, UsageError


@pytest.mark.parametrize(("found", "fits"), [("1.16.0", True), ("1.16.0.dev0", True), ("1.99", True), ("1.9", False), ("2.0.0", False)])
def test_a_version_out_of_the_known_range_is_named_with_the_remedy(found: str, fits: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: found)
    if fits:
        check_version("trl", "1.16", "2.0")
        return
    with pytest.raises(UsageError, match=r"trl .* is installed, and this adapter knows 1.16 to below 2.0.*pip install 'trl>=1.16,<2.0'"):
        check_version("trl", "1.16", "2.0")


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(MissingExtra, match=r"pip install '/path/to/dreamgym\[no-such-package\]'"):
        check_version("no-such-package", "1", "2")
