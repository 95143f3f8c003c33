"""The YAML of the values: the fields, names and help of the dataclasses themselves."""

# Annotations are values here: Dagster reads a component's YAML by them.

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, Final

import dagster as dg

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.delivery.arguments import check_names
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.jobs import Application, Copy
from kafka_ordered_ops.spec.table import Table

#: One variable and nothing else: resolved when a run begins, and shown by its name only.
_VARIABLE: Final = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")

_Text = str | bool | int | float
_Mapping = Mapping[str, _Text] | str
_Texts = list[str] | str

#: The YAML types of fields that are not plain text.
_TYPES: Final[Mapping[str, Any]] = {
    "allow_fewer": bool | str,
    "arguments": list[_Text] | str,
    "conf": _Mapping,
    "delete_tombstones": bool | str,
    "exclude": _Texts,
    "flatten": bool | str,
    "keys": _Texts,
    "max_offsets": int | str,
    "ordered": bool | str,
    "redefine": bool | str,
    "starting_offsets": _Mapping,
    "storage_options": _Mapping,
    "submit": Mapping[str, Any] | str,
    "topics": _Texts,
    "values": _Mapping,
}

#: Fields whose variables stay unresolved until a run begins.
_HIDDEN: Final = frozenset({"storage_options"})

#: Fields without a place in a file: times come from the run, and connections belong to Airflow.
_ABSENT: Final[Mapping[type, Collection[str]]] = {
    Window: ("cutoff", "since", "sweep", "allow_future_cutoff"),
    Folder: ("storage_conn_id",),
}

#: The name in a file of the field ``path`` of an `Application`.
_FILE: Final = "application"


def value_of(kind: type, *, text: str | None = None) -> dg.Resolver:
    """Return the resolver of a value, given by its fields.

    Args:
        kind: the value.
        text: the field that plain text sets; None means that text is refused.
    """
    model = _fields_of(kind).model()

    def resolve(context: dg.ResolutionContext, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, str):
            if text is None:
                raise ConfigError(f"{kind.__name__} is a mapping of fields, not {value!r}")
            return kind(**{text: _rendered(context, value)})
        return kind(**_arguments(context, value))

    field_type: Any = model if text is None else str | model
    return dg.Resolver(resolve, model_field_type=field_type | None, description=_about(kind))


def job_of_file(path: Callable[[Any, str], str]) -> dg.Resolver:
    """Return the resolver of a job: an `Application` with the field ``application``, else a `Copy`.

    Args:
        path: returns the full path of a file beside the YAML file.
    """
    job_fields = _fields_of(Application, Copy)

    def resolve(context: dg.ResolutionContext, value: Any) -> Application | Copy | None:
        if value is None:
            return None
        if isinstance(value, str):
            raise ConfigError(f"job is a mapping of fields, not {value!r}")
        arguments = _arguments(context, value)
        file = arguments.pop(_FILE, None)
        kind, preposition = (Copy, "without") if file is None else (Application, "with")
        check_names(
            f"a job {preposition} an application", arguments, [field.name for field in fields(kind)]
        )
        return Copy(**arguments) if file is None else Application(path(context, file), **arguments)

    about = "A Spark application that is run by spark-submit, or how the records are copied."
    return dg.Resolver(resolve, model_field_type=job_fields.model() | None, description=about)


def _arguments(context: dg.ResolutionContext, model: Any) -> dict[str, Any]:
    """Return the fields that a file has, with their templates rendered."""
    return {
        name: _rendered(context, value, is_hidden=name in _HIDDEN)
        for name in type(model).model_fields
        if (value := getattr(model, name)) is not None
    }


@cache
def _fields_of(*kinds: type) -> Any:
    """Return the fields of a value, which may be of any of these kinds, as a class that Dagster resolves."""
    field_types: dict[str, tuple[str, Any, Any]] = {}
    for kind in kinds:
        helps = _helps(kind)
        for field in fields(kind):
            name = _FILE if kind is Application and field.name == "path" else field.name
            if field.name in _ABSENT.get(kind, ()) or name in field_types:
                continue
            needed = len(kinds) == 1 and _is_needed(kind, field)
            type_: Any = _TYPES.get(field.name, str)
            resolver = dg.Resolver.default(
                model_field_type=type_ if needed else type_ | None,
                description=helps.get(field.name),
            )
            field_types[name] = (name, Annotated[Any, resolver], MISSING if needed else None)
    # Fields without a default come first.
    in_order = sorted(field_types.values(), key=lambda field: field[2] is not MISSING)
    return make_dataclass(
        f"{'Or'.join(kind.__name__ for kind in kinds)}Fields",
        [
            (name, type_) if default is MISSING else (name, type_, default)
            for name, type_, default in in_order
        ],
        bases=(dg.Resolvable,),
    )


def _is_needed(kind: type, field: Field[Any]) -> bool:
    if kind is Window or kind is Policy:
        # The defaults are in their constructors.
        return field.name == "topics"
    return field.default is MISSING and field.default_factory is MISSING


def _rendered(context: dg.ResolutionContext, value: Any, *, is_hidden: bool = False) -> Any:
    """Return a field with its templates rendered; other text stays unchanged, and a secret stays a variable."""
    if isinstance(value, str):
        if is_hidden and (variable := _VARIABLE.fullmatch(value.strip())):
            return dg.EnvVar(variable[1])
        # Dagster would read '007' as a number.
        return context.resolve_value(value) if "{{" in value else value
    if isinstance(value, Mapping):
        rendered = hidden_setting if is_hidden else _rendered
        return {name: rendered(context, item) for name, item in value.items()}
    return (
        [_rendered(context, item) for item in value] if isinstance(value, list | tuple) else value
    )


def hidden_setting(context: dg.ResolutionContext, value: Any) -> str:
    """Return a setting as text, which may be a secret: a variable is resolved when a run begins, and only its name is shown."""
    # An `EnvVar` is a `str`.
    text = _rendered(context, value, is_hidden=True)
    if isinstance(text, str):
        return text
    return str(text).lower() if isinstance(text, bool) else str(text)


def _about(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _helps(kind: type) -> dict[str, str]:
    """Return the help of each field, from the arguments in the docstring."""
    helps: dict[str, str] = {}
    name = None
    for line in (
        (kind.__doc__ or "").partition("Args:\n")[2].partition("\n    Raises:")[0].splitlines()
    ):
        if started := re.match(r" {8}(\w+): (.+)", line):
            name = started[1]
            helps[name] = started[2].strip()
        elif name is not None and line.strip():
            helps[name] += f" {line.strip()}"
    return {name: text.replace("``", "").replace("`", "") for name, text in helps.items()}


#: The values of a file, by their fields.
ResolvedWindow = Annotated[Window | None, value_of(Window)]
ResolvedPolicy = Annotated[Policy | None, value_of(Policy)]
ResolvedFolder = Annotated[Folder | None, value_of(Folder, text="path")]
ResolvedTable = Annotated[Table | None, value_of(Table, text="name")]
