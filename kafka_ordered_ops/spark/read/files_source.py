"""Read Parquet files as one DataFrame that keeps the order of files and rows.

Spark's own reader does not: it packs files into tasks by size, the largest first. A union of one DataFrame per file keeps
the order, and reads only the needed columns. But planning takes seconds for hundreds of files, and minutes for thousands,
so a union is for few files. For many files, a Python data source assigns one list of them to tasks in order, neighbours
together.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kafka_ordered_ops.core.errors import ReadError
from kafka_ordered_ops.output.address import is_local, spark_path
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.ports import Files
from kafka_ordered_ops.spark.read.reading import parquet_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_NAME: Final = "ordered_files"

#: The largest number of files in a union, which is planned in less than a second.
UNION_FILES_MAX: Final = 64

#: Files of up to this many bytes together share a task; a larger file has its own task.
TASK_BYTES: Final = 32 * 1024**2

#: The cost of opening a file, in bytes that could be read in the same time.
FILE_COST_BYTES: Final = 512 * 1024

#: How many files' columns are read concurrently.
_FOOTERS_AT_ONCE: Final = 16

#: Rows of one batch.
_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FileOfWindow:
    """One file, and the window whose rows it holds."""

    path: str
    window_id: str


class FilesOfTask(InputPartition):
    """The files of one task."""

    def __init__(self, files: Sequence[FileOfWindow]) -> None:
        super().__init__(None)
        self.files = tuple(files)


def frame_of_files(
    spark: SparkSession,
    files: Sequence[FileOfWindow],
    schema: StructType | str,
    where: Files | None = None,
) -> DataFrame:
    """Return the rows of the files, one file after the other, with a column ``window_id`` at the end.

    Args:
        spark: the session, classic or Connect; all executors must see the files.
        files: the files, in the wanted order.
        schema: the files' columns as Spark's schema. Times in milliseconds are read as Spark's microseconds.
        where: the storage through which this process reads the files; None uses its own file system.

    Raises:
        ReadError: a file is gone, or has other columns; for many files, raised only when they are read.
    """
    # Python on the executors has neither the credentials of an object store nor a client of HDFS.
    if 0 < len(files) <= UNION_FILES_MAX or (files and not is_local(files[0].path)):
        return _union(spark, files, schema, where or LocalFiles())
    # A unique name for each frame: Connect resolves it for every action.
    name = f"{SOURCE_NAME}_{uuid.uuid4().hex}"
    spark.dataSource.register(_source_of(tuple(files), name))
    columns = spark.createDataFrame([], schema).schema.add("window_id", "string")
    return spark.read.format(name).schema(columns).load()


def _union(
    spark: SparkSession, files: Sequence[FileOfWindow], schema: StructType | str, where: Files
) -> DataFrame:
    from pyspark.sql import functions as f

    read_schema = spark.createDataFrame([], schema).schema
    _check_columns(files, read_schema.names, where)
    frames = (
        # Without the schema Spark would start a job for each file, to infer it.
        parquet_reader(spark)
        .schema(read_schema)
        .parquet(spark_path(file.path))
        .withColumn("window_id", f.lit(file.window_id))
        for file in files
    )
    return reduce(lambda above, below: above.unionAll(below), frames)


def _check_columns(files: Sequence[FileOfWindow], columns: Sequence[str], where: Files) -> None:
    """Raise `ReadError` for a file that is gone, or lacks columns: Spark would read these as nulls."""

    def check(file: FileOfWindow) -> None:
        try:
            with where.footer(file.path) as footer:
                names = pq.read_schema(footer).names
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(file, columns, str(error)) from error
        if missing := [name for name in columns if name not in names]:
            raise _unreadable(file, columns, f"it has no {', '.join(missing)}")

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, thread_name_prefix="footers") as pool:
        for _ in pool.map(check, files):
            pass


def _unreadable(file: FileOfWindow, columns: Sequence[str], why: str) -> ReadError:
    return ReadError(
        f"{file.path} of window {file.window_id} cannot be read as {list(columns)}: {why}. It was published again "
        "meanwhile, or written by a job with other columns than the first window's: read such windows one by one"
    )


def dealt_to_tasks(files: Sequence[FileOfWindow]) -> list[FilesOfTask]:
    """Group neighbouring files into tasks of up to `TASK_BYTES`."""
    tasks: list[list[FileOfWindow]] = []
    room = 0
    for file in files:
        cost = os.stat(file.path).st_size + FILE_COST_BYTES
        if cost > room or not tasks:
            tasks.append([])
            room = TASK_BYTES
        tasks[-1].append(file)
        room -= cost
    return [FilesOfTask(task) for task in tasks]


@dataclass(frozen=True)
class OrderedFilesReader(DataSourceReader):
    """Assign files to tasks in the planning worker, and read a task's files in the task."""

    files: tuple[FileOfWindow, ...]
    schema: pa.Schema

    def partitions(self) -> list[FilesOfTask]:
        """Return the files of each task. Without files, return one empty task: Spark's own one would have no content."""
        return dealt_to_tasks(self.files) or [FilesOfTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files; raise `ReadError` for a file that is gone, or has other columns."""
        for file in partition.files if isinstance(partition, FilesOfTask) else ():
            try:
                with pq.ParquetFile(file.path, pre_buffer=False) as opened:
                    for batch in opened.iter_batches(_BATCH_ROWS):
                        yield self._with_window(batch, file.window_id)
            except (OSError, KeyError, pa.ArrowException) as error:
                raise _unreadable(file, self.schema.names[:-1], str(error)) from error

    def _with_window(self, batch: pa.RecordBatch, window_id: str) -> pa.RecordBatch:
        columns = [
            pa.repeat(pa.scalar(window_id), batch.num_rows)
            if field.name == "window_id"
            else batch.column(field.name).cast(field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles the reader for the tasks, and passes each task its files separately.
        return OrderedFilesReader, ((), self.schema)


class OrderedFiles(DataSource):
    """The data source itself; `_source_of` makes the class that is registered."""

    source_name: ClassVar[str] = SOURCE_NAME

    def __init__(self, options: dict[str, str], files: tuple[FileOfWindow, ...] = ()) -> None:
        super().__init__(options)
        self._files = files

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return cls.source_name

    def reader(self, schema: StructType) -> OrderedFilesReader:
        """Return the reader of all files."""
        return OrderedFilesReader(self._files, to_arrow(schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedFiles, (dict(self.options), self._files)


def _source_of(files: tuple[FileOfWindow, ...], name: str) -> type[OrderedFiles]:
    """Return the class to register for these files. It cannot be imported, so Spark pickles it with its contents."""

    class OneRead(OrderedFiles):
        source_name = name

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options, files)

    return OneRead


def to_arrow(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to Arrow."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Before Spark 4.2, times are always UTC.
        return to_arrow_schema(schema)
