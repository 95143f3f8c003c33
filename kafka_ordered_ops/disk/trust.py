"""Who may own, and so may change, what this package works with."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from typing import Final

#: Names the others who share a root on purpose: users and ``@groups``, separated by commas; ``*`` is everybody.
TRUST_VARIABLE: Final = "KAFKA_ORDERED_OPS_TRUST"

_EVERYBODY: Final = "*"


def check_trusted(found: os.stat_result, path: str) -> None:
    """Raise `PermissionError` unless only trusted users can change a folder or a file.

    Trusted are the user of this process, root, and whom the environment names. A group that may write was let in by the
    owner, with the umask or a folder's group. Everybody else never is.
    """
    named = [one.strip() for one in os.environ.get(TRUST_VARIABLE, "").split(",") if one.strip()]
    if _EVERYBODY in named:
        return
    if not _is_trusted(found.st_uid, named):
        owner = _name(found.st_uid)
        raise PermissionError(
            errno.EPERM,
            f"it belongs to user {owner}, and only this process's user, {_name(os.geteuid())}, and root are trusted there. If "
            f"{owner} shares it with you on purpose, set {TRUST_VARIABLE}={owner}; else move it away, or use a folder of "
            "your own",
            path,
        )
    if found.st_mode & stat.S_IWOTH:
        raise PermissionError(
            errno.EPERM,
            f"every user of this machine may write to it. Take that right away (chmod o-w), or set {TRUST_VARIABLE}=* where "
            "no other user has access",
            path,
        )


def _is_trusted(uid: int, named: list[str]) -> bool:
    if uid in (os.geteuid(), 0):
        return True
    return any(
        _group_id(one[1:]) in _groups_of(uid) if one.startswith("@") else _user_id(one) == uid
        for one in named
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
