"""Which filesystem a path is on: an SQLite log in WAL mode shares memory between processes, which network filesystems do not do.

Linux only, by the mount table; elsewhere nothing is known and nothing is said.
"""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ncpfs|davfs|fuse\.(sshfs|s3fs|rclone|gcsfuse|glusterfs|juicefs|ceph)"
)


def network_filesystem(path: Path) -> str | None:
    """The kind of network filesystem that `path` (which need not exist) is on, such as "nfs4"; None when it is local or unknown."""
    if not MOUNTS.is_file():
        return None
    kind = filesystem(path.resolve(), MOUNTS.read_text(encoding="utf-8", errors="replace"))
    return kind if NETWORK.fullmatch(kind) else None


def filesystem(path: Path, mountinfo: str) -> str:
    """The type of the filesystem that holds an absolute `path`, by the text of /proc/self/mountinfo; "" when no mount holds it."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4]))  # a space is written \040
        if path.is_relative_to(point) and len(point.parts) >= best:  # a later mount on the same point covers an earlier one
            best, kind = len(point.parts), after.split()[0]
    return kind
