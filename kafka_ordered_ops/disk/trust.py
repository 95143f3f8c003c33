"""Users that may own, and so change, this package's files."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from typing import Final

#: Users and ``@groups`` that share a root on purpose, separated by commas; ``*`` means all users.
TRUST_VARIABLE: Final = "KAFKA_ORDERED_OPS_TRUST"

_EVERYBODY: Final = "*"


def check_trusted(status: os.stat_result, path: str) -> None:
    """Raise `PermissionError` unless only trusted users can change a folder or a file.

    The user of this process, root, and the users that the environment lists are trusted. A group with write permission was
    allowed by the owner, through the umask or the folder's group. Other users are never trusted.
    """
    is_open, is_own = bool(status.st_mode & stat.S_IWOTH), status.st_uid in (os.geteuid(), 0)
    if is_own and not is_open:
        # The usual case, for each step of each path.
        return
    trusted = [
        name.strip() for name in os.environ.get(TRUST_VARIABLE, "").split(",") if name.strip()
    ]
    if _EVERYBODY in trusted:
        return
    if not (is_own or _is_named(status.st_uid, trusted)):
        owner = _name(status.st_uid)
        raise PermissionError(
            errno.EPERM,
            f"it belongs to user {owner}, and only this process's user, {_name(os.geteuid())}, and root are trusted there. If "
            f"{owner} shares it with you on purpose, set {TRUST_VARIABLE}={owner}; otherwise move it away, or use your "
            "own folder",
            path,
        )
    if is_open:
        raise PermissionError(
            errno.EPERM,
            f"every user of this machine may write to it. Remove that permission (chmod o-w), or set {TRUST_VARIABLE}=* where "
            "no other user has access",
            path,
        )


def _is_named(uid: int, trusted: list[str]) -> bool:
    return any(
        _group_id(name[1:]) in _groups_of(uid) if name.startswith("@") else _user_id(name) == uid
        for name in trusted
    )


def _user_id(text: str) -> int | None:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        return None


def _group_id(text: str) -> int | None:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except KeyError:
        return None


def _groups_of(uid: int) -> list[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
