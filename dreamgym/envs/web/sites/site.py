"""What a site is: where its code lies, what it needs, and who can log in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody a task can be done as."""

    login: str
    password: str
    start: str
    """The path of the page that an episode begins with."""
    about: str
    """What the account is for, as `dreamgym web up` says it."""


@dataclass(frozen=True, slots=True)
class Site:
    """One site."""

    name: str
    package: str
    """The dotted name of the package that holds `content` and `settings`."""
    module: str
    """The module that the site is made of, such as `oscar`."""
    distribution: str
    """The distribution that brings it."""
    accounts: Mapping[str, Account]
    """By role. `content.fill` returns a user for each."""
