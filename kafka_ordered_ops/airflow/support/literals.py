"""Parameters that are known when a DAG's file is parsed: an invalid one is an import error of the DAG."""

from __future__ import annotations

from typing import Any, Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.templates import is_literal as is_literal

#: The first characters of the text of lists, tuples, sets and mappings.
_BRACKETS: Final = ("[", "(", "{")


def check_native(value: Any, what: str) -> None:
    """Raise `ConfigError` for the text of a list or mapping: a template renders a list or mapping to text.

    Args:
        value: a rendered parameter that takes a list or a mapping, and never text that begins with a bracket.
        what: the parameter's name.
    """
    if isinstance(value, str) and value.lstrip().startswith(_BRACKETS) and is_literal(value):
        raise ConfigError(
            f"{what} is the text {shown(value)}: a template renders a list or mapping, for example of params, to text. Set "
            "render_template_as_native_obj=True for the DAG to keep its type"
        )
