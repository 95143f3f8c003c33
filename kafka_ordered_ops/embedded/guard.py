"""Run one program, and end it when the process that started it is gone, for any reason.

Started as ``python -I guard.py REMOVE COMMAND...`` with a pipe as its standard input. The pipe ties the two: the
kernel closes the other end when the parent ends, a ``kill -9`` included. (The parent death signal of Linux does not
suffice: it fires when the *thread* that forked ends.) A line on the pipe is an order: ``kill``, ``term``, ``stop`` or
``cont``; a byte on the standard output confirms it. The guard ends when the program has.

When the pipe closes while the program runs, the program's group is killed and the folder REMOVE deleted.
Signals are sent from here because here the process id is certain: until this process has reaped the
program, no other can be given its number.

Uses the standard library only, and nothing of the package, since ``-I`` keeps the path clean.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys

_ORDERS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
}

#: A process that was forked from the parent and never ran another program holds the pipe open too;
#: then only the parent's id shows it. Anything up to a few seconds suffices.
_PARENT_CHECK_S = 0.5

_PR_SET_PDEATHSIG = 1


def main(remove: str, command: list[str]) -> None:
    """Run `command` until it ends or the parent does."""
    parent = os.getppid()
    # Waking up for an ended program: select() must return, so the signal is turned into a byte.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # The end of the guard ends its program; SystemExit runs the `finally` below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # Not the standard output: its end must mean that the guard has ended.
        stdout=sys.stderr.fileno(),
        start_new_session=True,
        # This process has one thread, so neither objection to these holds here: no lock is held across
        # the fork, and the thread that forks is the one that lives to the end.
        preexec_fn=_die_with_guard if sys.platform == "linux" else None,
    )
    try:
        _obey(program, parent, wake_read)
    finally:
        abandoned = program.poll() is None
        if abandoned:
            _signal(program, signal.SIGKILL)
        program.wait()
        if abandoned:
            shutil.rmtree(remove, ignore_errors=True)


def _obey(program: subprocess.Popen[bytes], parent: int, wake: int) -> None:
    """Execute orders until the program ends or the parent is gone."""
    orders = sys.stdin.fileno()
    pending = b""
    while program.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([orders, wake], [], [], _PARENT_CHECK_S)
        if wake in readable:
            os.read(wake, 4096)
        if orders in readable:
            received = os.read(orders, 4096)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                _signal(program, _ORDERS[line.decode("ascii")])
                # If the parent is gone, the next turn finds out.
                with contextlib.suppress(BrokenPipeError):
                    os.write(sys.stdout.fileno(), b".")


def _signal(program: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The whole group: a wrapper script may be the parent of the Java process.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, number)


def _die_with_guard() -> None:
    """Make the kernel kill the program if the guard itself is killed (Linux only)."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
