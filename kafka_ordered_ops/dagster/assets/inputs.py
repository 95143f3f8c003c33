"""Load windows as inputs of downstream assets."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, get_args, get_origin

from dagster import AssetKey, InputContext, IOManager, OutputContext

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.dagster.settings import WindowSettings, window_id_of
from kafka_ordered_ops.dagster.storage import resolved_options

if TYPE_CHECKING:
    import pyarrow as pa

#: What an input may be annotated with, by the library that has the type.
_KINDS: Final = (
    "pyarrow.Table, pandas.DataFrame, polars.DataFrame or LazyFrame, duckdb.DuckDBPyRelation, or list[str] for the paths of "
    "the files. In Spark, use kafka_ordered_ops.spark.read_output"
)


class WindowInputs(IOManager):
    """Gives downstream assets the published rows of an asset's windows, as the type of their parameter.

    An input has the windows of its partitions, in the order of the partitions, the rows of each window in their order;
    of an asset without partitions, all windows.

    Args:
        key: the asset that the windows are of.
        settings: its settings.
    """

    def __init__(self, key: AssetKey, settings: WindowSettings) -> None:
        self._key = key
        self._settings = settings

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        """Do nothing: the windows were published by the step itself."""

    def load_input(self, context: InputContext) -> Any:
        """Return the rows of the input's partitions.

        Raises:
            ConfigError: an unknown type, a partition that is not published, or windows that are not in a folder.
        """
        folder = self._settings.folder
        if folder is None:
            self._refuse(
                "its windows are in a table, or a sink of its function's: read it from there"
            )
        options = resolved_options(folder.storage_options)
        names = self._window_ids(context, folder.root, options)
        kind = context.dagster_type.typing_type
        return self._as(kind, folder.root, names, options)

    def _window_ids(
        self, context: InputContext, root: str, options: dict[str, Any] | None
    ) -> list[str] | None:
        """Return the windows of the partitions; None for all windows of an asset without partitions."""
        if not context.has_asset_partitions:
            return None
        wholes = [window_id_of(self._key, name) for name in context.asset_partition_keys]
        if self._settings.open_lag is None:
            return wholes
        # A partition that had not ended was taken in pieces, each a window of its own: its id, `@`, and its cutoff.
        from kafka_ordered_ops.output.published import published

        found = sorted(published(root, None, options))
        return [name for whole in wholes for name in found if name.partition("@")[0] == whole]

    def _as(
        self, kind: Any, root: str, names: Sequence[str] | None, options: dict[str, Any] | None
    ) -> Any:
        from kafka_ordered_ops.output.published import files

        library = (getattr(kind, "__module__", None) or "").partition(".")[0]
        if get_origin(kind) is list and get_args(kind) == (str,):
            return files(root, names, storage_options=options)
        if kind in (Any, inspect.Parameter.empty) or library == "pyarrow":
            return self._table(root, names, options)
        if library == "pandas":
            return self._table(root, names, options).to_pandas()
        if library == "polars":
            import polars as pl

            frame: Any = pl.from_arrow(self._table(root, names, options))
            return frame.lazy() if kind is pl.LazyFrame else frame
        if library in ("duckdb", "_duckdb"):
            import duckdb

            return duckdb.from_arrow(self._table(root, names, options))
        return self._refuse(f"an input of the type {kind} is not known: annotate it with {_KINDS}")

    def _table(
        self, root: str, names: Sequence[str] | None, options: dict[str, Any] | None
    ) -> pa.Table:
        import pyarrow as pa

        from kafka_ordered_ops.output.published import published, window_table

        wanted = list(published(root, names, options))
        return pa.concat_tables([window_table(root, name, options) for name in wanted])

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"asset {self._key.to_user_string()} cannot be loaded: {reason}")
