"""Columns by their names, which may descend: ``meta.set`` is the value of ``set`` within ``meta``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tape_ds.errors import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa


def value_of(record: Mapping[str, Any], name: str) -> Any:
    """Return what a record has under a name; a key that is spelled with dots itself comes first.

    Raises:
        KeyError: it has no such key.
    """
    if name in record:
        return record[name]
    head, _, rest = name.partition(".")
    if not rest or not isinstance(record.get(head, 0), Mapping | None):
        raise KeyError(name)
    return value_of(record[head], rest) if record[head] is not None else None


def names_in(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name of every value that is no mapping itself."""
    for key, value in record.items():
        yield from (f"{key}.{name}" for name in names_in(value)) if isinstance(value, Mapping) else [str(key)]


def hint(name: str, record: Mapping[str, Any]) -> str:
    """Return which column may be meant by a name that leads to no text."""
    names = list(names_in(record))
    near = [each for each in names if each.endswith(f".{name}") or each.startswith(f"{name}.")]
    return f"did you mean {' or '.join(map(repr, near[:3]))}?" if near else did_you_mean(name, names)


def as_record(schema: "pa.Schema | pa.StructType") -> dict[str, Any]:
    """Return a schema as a record: each column's type, of a struct a mapping."""
    import pyarrow as pa

    return {each.name: as_record(each.type) if pa.types.is_struct(each.type) else each.type for each in schema}


def python_values(batch: "pa.RecordBatch | pa.Table", name: str | None = None) -> list[Any]:
    """Return a column of Arrow's, or whole rows, as Python's values; of bytes that are no UTF-8, the error.

    Raises:
        KeyError: there is no such column.
    """
    column = batch.to_struct_array() if name is None else _column(batch, name)
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_python_value(value) for value in column]


def _column(batch: "pa.RecordBatch | pa.Table", name: str) -> "pa.Array | pa.ChunkedArray":
    import pyarrow.compute

    value_of(as_record(batch.schema), name)
    head, rest = (name, "") if name in batch.schema.names else name.split(".", 1)
    column = batch.column(head)
    while rest:
        names = [field.name for field in column.type]
        head, rest = (rest, "") if rest in names else rest.split(".", 1)
        column = pyarrow.compute.struct_field(column, head)
    return column


def _python_value(value: "pa.Scalar") -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error
