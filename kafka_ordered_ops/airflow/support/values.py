"""Values of this package among a task's parameters: Airflow renders their fields, and finds other tasks' results in them.

Values are frozen, and several tasks may share one: rendering creates another value, which is checked again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, Final

from airflow.sdk.definitions.mappedoperator import OperatorPartial

from kafka_ordered_ops.airflow.compat import BaseOperator, XComArg, errors_for_airflow, mask
from kafka_ordered_ops.airflow.support.literals import check_native
from kafka_ordered_ops.core.masked import secrets_among
from kafka_ordered_ops.core.templates import is_literal
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.jobs import Application, Copy, Function
from kafka_ordered_ops.spec.process import Process
from kafka_ordered_ops.spec.spark_submit import SparkSubmit
from kafka_ordered_ops.spec.table import Table

#: The fields that may hold templates.
_TEMPLATED: Final[Mapping[type, Sequence[str]]] = {
    Window: (
        "topics",
        "exclude",
        "starting_offsets",
        "max_out_of_orderness",
        "isolation",
        "on_data_loss",
        "values",
        "on_bad",
    ),
    Policy: ("on_covered", "on_open_claim", "claim_age", "claim_wait", "max_offsets"),
    Folder: ("path", "partition_by", "storage_options", "storage_conn_id"),
    Table: ("name", "mode", "keys", "conf"),
    Copy: ("engine", "conf"),
    Function: ("keywords", "engine", "conf"),
    Application: ("path", "arguments", "submit", "engine"),
    SparkSubmit: (
        "master",
        "conf",
        "py_files",
        "files",
        "archives",
        "jars",
        "packages",
        "environment",
    ),
    Process: ("keywords", "dead_letter_topic"),
}

#: Fields that are lists or mappings.
_COLLECTIONS: Final = (
    "arguments",
    "conf",
    "environment",
    "exclude",
    "keys",
    "keywords",
    "starting_offsets",
    "storage_options",
    "submit",
    "topics",
)


class ValueTask(BaseOperator):
    """A task with values among its parameters."""

    @classmethod
    def partial(cls, **parameters: Any) -> Any:
        """Return Airflow's partial, which makes the mapped task depend on the tasks whose results it uses."""
        operator_partial = super().partial(**parameters)
        # Airflow searches only template fields for these tasks, and not values.
        operator_partial.__class__ = _Partial
        return operator_partial

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: Any = None
    ) -> Any:
        """Render a value of this package as a new value, and anything else as Airflow does."""
        names = _TEMPLATED.get(type(content))
        if names is None:
            return super().render_template(content, context, jinja_env, seen_oids)
        values: dict[str, Any] = {}
        for name in names:
            value = getattr(content, name)
            if isinstance(value, Mapping | Sequence | XComArg) or type(value) in _TEMPLATED:
                rendered = self.render_template(value, context, jinja_env, seen_oids)
                values[name] = _field_value(type(content), name, value, rendered)
        for name in ("conf", "environment"):
            for secret in secrets_among(values.get(name)):
                mask(secret)
        with errors_for_airflow():
            for name in _COLLECTIONS:
                check_native(values.get(name), name)
            return replace(content, **values)

    def _set_xcomargs_dependencies(self) -> None:
        super()._set_xcomargs_dependencies()
        for name in self.template_fields:
            self._depend(getattr(self, name, None))

    def _set_xcomargs_dependency(self, field: str, newvalue: Any) -> None:
        super()._set_xcomargs_dependency(field, newvalue)
        if field in self.template_fields:
            self._depend(newvalue)

    def _depend(self, value: Any) -> None:
        for nested in _within(value):
            XComArg.apply_upstream_relationship(self, nested)


class _Partial(OperatorPartial):
    """A partial whose mapped task depends on all tasks whose results it uses."""

    __slots__ = ()

    def expand(self, **mapped: Any) -> Any:
        """Return the mapped task."""
        return self._depending(super().expand(**mapped), mapped)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        """Return the mapped task."""
        return self._depending(super().expand_kwargs(kwargs, strict=strict), kwargs)

    def _depending(self, task: Any, mapped: Any) -> Any:
        for value in (*self.kwargs.values(), *_each(mapped)):
            for nested in _within(value):
                XComArg.apply_upstream_relationship(task, nested)
            XComArg.apply_upstream_relationship(task, value)
        return task


def _each(mapped: Any) -> Iterator[Any]:
    """Yield the argument that a task is mapped over, and all items in it."""
    yield mapped
    if isinstance(mapped, Mapping):
        for value in mapped.values():
            yield from _each(value)
    elif isinstance(mapped, Sequence) and not isinstance(mapped, str | bytes):
        for value in mapped:
            yield from _each(value)


def _within(value: Any) -> Iterator[Any]:
    """Yield the fields of a value and of its nested values, which Airflow does not search."""
    for name in _TEMPLATED.get(type(value), ()):
        yield (inside := getattr(value, name))
        yield from _within(inside)


def _field_value(kind: type, name: str, template: Any, rendered: Any) -> Any:
    """Return a rendered field in the form that its value accepts."""
    if rendered == "" and not is_literal(template):
        # A template without a value renders to empty text: then the default applies.
        default = inspect.signature(kind).parameters[name].default
        if default is not inspect.Parameter.empty and not callable(default):
            return default
        factory = {field.name: field.default_factory for field in fields(kind)}.get(name, MISSING)
        return rendered if factory is MISSING else factory()
    if isinstance(rendered, Sequence) and not isinstance(rendered, str | bytes | list | tuple):
        # The results of mapped tasks may be one of Airflow's lazy sequences.
        return list(rendered)
    return rendered
