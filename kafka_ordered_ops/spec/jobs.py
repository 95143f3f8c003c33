"""What runs on a window's records: a copy, a function, or an application."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.arguments import call_error, check_flag, path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.functions import check_does_work, name_of
from kafka_ordered_ops.spec.engine import Engine, check_engine
from kafka_ordered_ops.spec.spark_submit import SparkSubmit, submit_of


@dataclass(frozen=True)
class Copy:
    """Copy the records unchanged.

    Args:
        engine: who reads Kafka: ``python`` or ``connector`` (Spark's executors), or ``local`` (this process).
            None: ``python`` with Spark, otherwise ``local``.
        ordered: True for total order by (timestamp, topic, partition, offset), False for the order of reading.

    Raises:
        ConfigError: an unknown engine, or no bool.
    """

    engine: Engine | str | None = None
    ordered: bool = True

    def __post_init__(self) -> None:
        _check_reading(self.engine, self.ordered)


@dataclass(frozen=True)
class Function:
    """Call a function with the `OpenWindow`, in this process. A function itself means this with the defaults.

    If the window goes to a folder or a table, the function calls ``window.write``. Otherwise a normal return means that
    the records were delivered, at least once.

    Args:
        call: the function.
        engine: who reads Kafka for ``window.read()``, see `Copy`; None: ``python``.
        ordered: the order of ``window.read()``, and of what is written, see `Copy`.

    Raises:
        ConfigError: a function that cannot be called with a window, or does its work only later; or as `Copy`.
    """

    call: Callable[..., Any]
    engine: Engine | str | None = None
    ordered: bool = True

    def __post_init__(self) -> None:
        _check_reading(self.engine, self.ordered)
        check_function(self.call, "window", keywords={})


@dataclass(frozen=True)
class Application:
    """Run a Python file by spark-submit; it calls ``current_window(spark)``.

    If the window goes to a table, it is run once more after the commit, to publish.

    Args:
        path: the file.
        arguments: its arguments.
        submit: the options of spark-submit: a `SparkSubmit`, or a mapping of its arguments.
        engine: who reads Kafka, see `Copy`; None: ``python``.
        ordered: see `Copy`.

    Raises:
        ConfigError: not a path, arguments that are no list, or invalid options; or as `Copy`.
    """

    path: str | os.PathLike[str]
    arguments: Sequence[str] = ()
    submit: SparkSubmit | Mapping[str, Any] | None = None
    engine: Engine | str | None = None
    ordered: bool = True

    def __post_init__(self) -> None:
        _check_reading(self.engine, self.ordered)
        text = path_text(self.path)
        if text is None or not text.strip() or "\0" in text:
            raise ConfigError(f"application is the path of a Python file, not {shown(self.path)}")
        object.__setattr__(self, "path", text)
        object.__setattr__(self, "arguments", tuple(arguments_of(self.arguments)))
        object.__setattr__(self, "submit", submit_of(self.submit))

    @property
    def how(self) -> SparkSubmit:
        """The options of spark-submit."""
        return submit_of(self.submit) or SparkSubmit()


Job = Copy | Function | Application


def job_of(
    function: Callable[..., Any] | None,
    application: str | os.PathLike[str] | None,
    arguments: Sequence[str],
    submit: SparkSubmit | Mapping[str, Any] | None,
    *,
    engine: Engine | str | None,
    ordered: bool,
) -> Job:
    """Return a caller's job; with neither a function nor an application, a copy. Raises `ConfigError`."""
    if function is not None and application is not None:
        raise ConfigError("function and application are both given: give one of them")
    if application is not None:
        return Application(application, arguments, submit, engine, ordered)
    if arguments or submit is not None:
        raise ConfigError("arguments and submit are for an application: give application=")
    return Copy(engine, ordered) if function is None else Function(function, engine, ordered)


def check_function(
    function: object,
    *given: str,
    keywords: Mapping[str, Any] | None = None,
    may_be_async: bool = False,
) -> None:
    """Raise `ConfigError` unless the value can be called as a job and does work when it is called.

    Args:
        function: the user's.
        given: the arguments of the call, by name.
        keywords: its keyword arguments; None: they are not known yet.
        may_be_async: whether the caller awaits what it returns.
    """
    if not callable(function):
        raise ConfigError(
            f"a job is a function of {' and '.join(given)}, not a {type(function).__name__}"
        )
    check_does_work(function, may_be_async=may_be_async)
    if keywords is None:
        return
    if (error := call_error(function, *given, **keywords)) is not None:
        more = f" and {', '.join(keywords)}" if keywords else ""
        raise ConfigError(
            f"{name_of(function)} is called with {' and '.join(given)}{more}: {error}"
        )


def arguments_of(given: Any) -> list[str]:
    """Return an application's arguments as texts; raise `ConfigError` unless they are a list, not text or a generator."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray):
        raise ConfigError(
            f"the application's arguments are {shown(given)}: give a list of arguments"
        )
    texts = [str(one) for one in given]
    if any("\0" in one for one in texts):
        raise ConfigError("the application's arguments contain a NUL, which no process accepts")
    return texts


def _check_reading(engine: object, ordered: object) -> None:
    if engine is not None:
        check_engine(engine)
    check_flag(ordered, what="ordered")
