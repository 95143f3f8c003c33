"""MirrorMaker 2 itself, Kafka's own, as a process that copies topics and commits from one broker to another."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.embedded.java import find_java

#: Its class path: `connect-mirror` of the broker's version.
_JARS: Final = Path(__file__).with_name("mirror_maker.sha256")
_PROGRAM: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
_TIMEOUT_S: Final = 30.0
_LOG_CHARACTERS: Final = 4_000

IDENTITY: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
PREFIXED: Final = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"

#: Everything that it does now and then, it does every second.
_OFTEN: Final = (
    "sync.group.offsets.interval.seconds",
    "emit.checkpoints.interval.seconds",
    "refresh.topics.interval.seconds",
    "refresh.groups.interval.seconds",
)
_REPLICAS: Final = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "config.storage.replication.factor",
)


class MirrorMaker:
    """One flow, which runs inside the `with` block.

    Args:
        source: alias and address of the cluster that is copied.
        target: alias and address of the other one.
        folder: for its files.
        topics: a regular expression of topics.
        group_id: the group whose commits are copied.
        policy: how topics are named on the target.
        lag_max: how many records may lie between two of its pairs of offsets.
    """

    def __init__(
        self,
        source: tuple[str, str],
        target: tuple[str, str],
        folder: Path,
        *,
        topics: str,
        group_id: str,
        policy: str = IDENTITY,
        lag_max: int = 100,
    ) -> None:
        (there, from_), (here, to) = source, target
        settings = {
            "clusters": f"{there},{here}",
            f"{there}.bootstrap.servers": from_,
            f"{here}.bootstrap.servers": to,
            f"{there}->{here}.enabled": "true",
            f"{there}->{here}.topics": topics,
            f"{there}->{here}.groups": group_id,
            f"{here}->{there}.enabled": "false",
            f"{here}->{there}.emit.heartbeats.enabled": "false",
            "emit.heartbeats.enabled": "false",
            "sync.group.offsets.enabled": "true",
            "sync.topic.acls.enabled": "false",
            "offset-syncs.topic.location": "target",
            "offset.lag.max": str(lag_max),
            # Pairs of offsets that it could not write at once wait for this.
            "offset.flush.interval.ms": "1000",
            "replication.policy.class": policy,
            **dict.fromkeys(_OFTEN, "1"),
            **dict.fromkeys(_REPLICAS, "1"),
        }
        mine = folder / f"mirror-{there}-{here}"
        mine.mkdir()
        self._file, self._log = mine / "mm2.properties", mine / "log"
        self._file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._here = here

    def __enter__(self) -> MirrorMaker:
        command = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", ":".join(map(str, listed_jars(_JARS, "mirror-maker"))), _PROGRAM]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [find_java().executable, *command, str(self._file), "--clusters", self._here],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_TIMEOUT_S)

    def check(self) -> None:
        """Fail if it has ended."""
        assert self._process.poll() is None, self.said()

    def said(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]
