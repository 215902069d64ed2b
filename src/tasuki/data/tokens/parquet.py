"""Rows of a parquet file as blocks, row group by row group. pyarrow is imported here alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tasuki.data.tokens.blocks import Block
from tasuki.errors import DataError, UsageError

if TYPE_CHECKING:
    from tasuki.data.tokens.sources import Source

_MOST_ROWS = 1 << 16


def _import() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "parquet files need the package `pyarrow`, which is not installed",
            hint='pip install "tasuki[parquet]"',
        ) from error
    return pyarrow


def read_rows(source: Source, field: str, *, place: int, bytes_each: int) -> Iterator[Block]:
    """Blocks of rows from row `place` on. What follows a row group never changes how it is cut."""
    arrow = _import()
    try:
        with arrow.parquet.ParquetFile(source.path, pre_buffer=False) as file:
            _refuse_field(file, source, field)
            yield from _groups(arrow, file, source, field, place, bytes_each)
    except arrow.ArrowException as error:
        raise DataError(
            f"`{source.path}` cannot be read as parquet: {str(error).splitlines()[0]}",
            hint="was it copied to the end?",
        ) from error


def _groups(
    arrow: Any, file: Any, source: Source, field: str, place: int, bytes_each: int
) -> Iterator[Block]:
    begin, total = 0, max(1, file.metadata.num_rows)
    for group in range(file.metadata.num_row_groups):
        facts = file.metadata.row_group(group)
        if begin + facts.num_rows > place:
            each = _rows_each(facts, field, bytes_each)
            for batch in file.iter_batches(each, row_groups=[group], columns=[field]):
                if begin >= place:
                    sink = arrow.BufferOutputStream()
                    with arrow.ipc.new_stream(sink, batch.schema) as writer:
                        writer.write_batch(batch)
                    after = begin + batch.num_rows
                    yield Block(
                        kind="parquet",
                        payload=sink.getvalue().to_pybytes(),
                        place=begin,
                        row=begin + 1,
                        after=after,
                        rows=batch.num_rows,
                        read=source.num_bytes * after // total,
                    )
                begin += batch.num_rows
        else:
            begin += facts.num_rows


def _rows_each(facts: Any, field: str, bytes_each: int) -> int:
    columns = [facts.column(number) for number in range(facts.num_columns)]
    size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema == field)
    return max(1, min(_MOST_ROWS, bytes_each * int(facts.num_rows) // max(1, int(size))))


def _refuse_field(file: Any, source: Source, field: str) -> None:
    from pyarrow import types

    schema = file.schema_arrow
    if field not in schema.names:
        raise DataError(
            f"`{source.path}` has no column `{field}`; it has {', '.join(schema.names[:8])}",
            hint="name the column of the text: `--field NAME`",
        )
    kind = schema.field(field).type
    if types.is_dictionary(kind):  # pandas' `category`: text all the same
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise DataError(
            f"column `{field}` of `{source.path}` holds {kind}, not text",
            hint="name the column of the text: `--field NAME`",
        )


def rows_of(payload: bytes) -> list[bytes | None]:
    """The texts of a block, in what should be UTF-8."""
    arrow = _import()
    with arrow.ipc.open_stream(payload) as reader:
        column = reader.read_all().column(0)
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values: list[bytes | None] = column.cast(arrow.large_binary()).to_pylist()
    return values
