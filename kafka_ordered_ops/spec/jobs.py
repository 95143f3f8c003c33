"""The jobs that run on a window's records: a copy, a function, or an application."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka_ordered_ops.core.arguments import call_error, check_flag, path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.functions import check_does_work, name_of
from kafka_ordered_ops.core.masked import masked, shown_fields
from kafka_ordered_ops.core.templates import check_rendered, if_literal, is_literal
from kafka_ordered_ops.spec.engine import Engine, check_engine
from kafka_ordered_ops.spec.spark_conf import conf_of
from kafka_ordered_ops.spec.spark_submit import SparkSubmit, submit_of


@dataclass(frozen=True, repr=False)
class Copy:
    """Copy the records unchanged.

    Args:
        engine: reads Kafka: ``python`` or ``connector`` (in Spark's executors), or ``local`` (in this process).
            None means ``python`` with Spark, otherwise ``local``.
        ordered: True for total order by (timestamp, topic, partition, offset), False for the order of reading.
        conf: settings of the Spark session that a host starts for the copy.

    Raises:
        ConfigError: an unknown engine, an `ordered` that is not a bool, or an invalid setting.
    """

    engine: Engine | str | None = None
    ordered: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_reading(self.engine, self.ordered)
        object.__setattr__(self, "conf", if_literal(self.conf, conf_of))

    def __repr__(self) -> str:
        return shown_fields(self, **_reading(self), conf=masked(self.conf))


@dataclass(frozen=True, repr=False)
class Function:
    """Call a function with the `OpenWindow`, in this process. A bare function is the same with the defaults.

    If the window goes to a folder or a table, the function calls ``window.write``. Otherwise a normal return means that
    the records were delivered, at least once.

    Args:
        call: the function.
        keywords: its other arguments.
        engine: reads Kafka for ``window.read()``, see `Copy`; None means ``python``. In a host, passing an engine or
            `conf` starts Spark before the window is planned; otherwise the first ``window.read()`` does.
        ordered: the order of ``window.read()`` and of the written records, see `Copy`.
        conf: settings of the Spark session that a host starts for ``window.read()``.

    Raises:
        ConfigError: a function that does not take these arguments, or does its work only later; or as for `Copy`.
    """

    call: Callable[..., Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    engine: Engine | str | None = None
    ordered: bool = True
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_reading(self.engine, self.ordered)
        object.__setattr__(self, "conf", if_literal(self.conf, conf_of))
        check_call(self.call, "window", self.keywords)

    # Not `__call__`: Airflow calls callable values in template fields.
    def run(self, window: Any) -> Any:
        """Call the function with the window and its other arguments."""
        return self.call(window, **self.keywords)

    def __repr__(self) -> str:
        return shown_fields(
            self,
            call=Name(full_name(self.call)),
            keywords=masked(self.keywords),
            **_reading(self),
            conf=masked(self.conf),
        )


@dataclass(frozen=True, repr=False)
class Application:
    """Run a Python file with spark-submit; it calls ``current_window(spark)``.

    If the window goes to a table, the file runs once more after the commit, to publish.

    Args:
        path: the file.
        arguments: its arguments.
        submit: the options of spark-submit: a `SparkSubmit`, or a mapping of its arguments.
        engine: reads Kafka, see `Copy`; None means ``python``.
        ordered: see `Copy`.

    Raises:
        ConfigError: not a path, arguments that are not a list, or invalid options; or as for `Copy`.
    """

    path: str | os.PathLike[str]
    arguments: Sequence[str] = ()
    submit: SparkSubmit | Mapping[str, Any] | None = None
    engine: Engine | str | None = None
    ordered: bool = True

    def __post_init__(self) -> None:
        _check_reading(self.engine, self.ordered)
        object.__setattr__(self, "path", if_literal(self.path, _application))
        object.__setattr__(self, "arguments", if_literal(self.arguments, _arguments))
        object.__setattr__(self, "submit", if_literal(self.submit, submit_of))

    def __repr__(self) -> str:
        submit = masked(self.submit) if isinstance(self.submit, Mapping) else self.submit
        return shown_fields(
            self, path=self.path, arguments=self.arguments, submit=submit, **_reading(self)
        )

    @property
    def how(self) -> SparkSubmit:
        """The options of spark-submit."""
        return submit_of(self.submit) or SparkSubmit()


Job = Copy | Function | Application


def job_of(job: object) -> Job:
    """Return a caller's job: a function means a `Function`, None a `Copy`; raise `ConfigError` for anything else."""
    if job is None:
        return Copy()
    if isinstance(job, Copy | Function | Application):
        check_rendered(job, "the job")
        return job
    if isinstance(job, str | os.PathLike):
        raise ConfigError(
            f"job is {shown(job)}, which is text: give Application({shown(job)}) to run it with spark-submit, or a function"
        )
    if not callable(job) or isinstance(job, type):
        raise ConfigError(
            f"job is {shown(job)}: give a function of the window, or a Copy, Function or Application"
        )
    return Function(job)


def check_function(
    function: object,
    *arguments: str,
    keywords: Mapping[str, Any] | None = None,
    may_be_async: bool = False,
) -> None:
    """Raise `ConfigError` unless the value can be called as a job and does work when it is called.

    Args:
        function: the user's function.
        arguments: the names of the positional arguments of the call.
        keywords: the keyword arguments; None if they are not known yet.
        may_be_async: whether the caller awaits the result.
    """
    if not callable(function):
        raise ConfigError(
            f"a job is a function of {' and '.join(arguments)}, not a {type(function).__name__}"
        )
    check_does_work(function, may_be_async=may_be_async)
    if keywords is None:
        return
    if (error := call_error(function, *arguments, **keywords)) is not None:
        more = f" and {', '.join(keywords)}" if keywords else ""
        raise ConfigError(
            f"{name_of(function)} is called with {' and '.join(arguments)}{more}: {error}"
        )


def check_call(
    function: object, argument: str, keywords: object, *, may_be_async: bool = False
) -> None:
    """Raise `ConfigError` as `check_function` does, or for keywords that are neither a mapping nor a template of one."""
    if not isinstance(keywords, Mapping) and is_literal(keywords):
        raise ConfigError(
            f"keywords is a {type(keywords).__name__}: give a mapping of the function's other arguments"
        )
    # The names of a mapping are known before its values are rendered.
    known = keywords if isinstance(keywords, Mapping) else None
    check_function(function, argument, keywords=known, may_be_async=may_be_async)


def arguments_of(value: Any) -> list[str]:
    """Return an application's arguments as texts; raise `ConfigError` unless they are a list, not text or a generator."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise ConfigError(
            f"the application's arguments are {shown(value)}: give a list of arguments"
        )
    texts = [str(argument) for argument in value]
    if any("\0" in argument for argument in texts):
        raise ConfigError("the application's arguments contain a NUL, which no process accepts")
    return texts


def _application(path: Any) -> str:
    text = path_text(path)
    if text is None or not text.strip() or "\0" in text:
        raise ConfigError(f"application is the path of a Python file, not {shown(path)}")
    return text


def _arguments(value: Any) -> tuple[str, ...]:
    return tuple(arguments_of(value))


def full_name(function: Any) -> str:
    """Return a function's name with its module: the same in every process that imports it."""
    # In Airflow, the module name of a DAG file has a hash of its path, which differs between processes.
    module = re.sub(r"^unusual_prefix_[0-9a-f]+_", "", getattr(function, "__module__", None) or "")
    # Not the default representation, which has an address in memory.
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}.{name}".strip(".")


class Name(str):
    """A name whose representation has no quotes."""

    def __repr__(self) -> str:
        return str(self)


def _reading(job: Job) -> dict[str, Any]:
    """Return the fields of a job's representation about reading."""
    engine = None if job.engine is None else str(job.engine)
    return {"engine": engine, "ordered": None if job.ordered else False}


def _check_reading(engine: object, ordered: object) -> None:
    if engine is not None and is_literal(engine):
        check_engine(engine)
    check_flag(ordered, what="ordered")
