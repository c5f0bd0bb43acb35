"""Columns by name, also nested ones: ``meta.set`` is the value of ``set`` in ``meta``."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from tape_ds.errors import did_you_mean


def value_of(record: Mapping[str, Any], name: str) -> Any:
    """Return a record's value by name; a key with dots precedes a nested one."""
    if name in record:
        return record[name]
    head, _, rest = name.partition(".")
    if not rest or not isinstance(record.get(head, 0), Mapping | None):
        raise KeyError(name)
    return value_of(record[head], rest) if record[head] is not None else None


def hint(name: str, record: Mapping[str, Any]) -> str:
    def names_in(record: Mapping[str, Any]) -> Iterator[str]:
        for key, value in record.items():
            yield from (f"{key}.{inner}" for inner in names_in(value)) if isinstance(value, Mapping) else [str(key)]

    names = list(names_in(record))
    near = [known for known in names if known.endswith(f".{name}") or known.startswith(f"{name}.")]
    return f"did you mean {' or '.join(map(repr, near[:3]))}?" if near else did_you_mean(name, names)


def as_record(schema: pa.Schema | pa.StructType) -> dict[str, Any]:
    """Return a schema as a record of types; a struct is a mapping."""
    return {field.name: as_record(field.type) if pa.types.is_struct(field.type) else field.type for field in schema}


def python_values(batch: pa.RecordBatch | pa.Table, name: str | None = None) -> list[Any]:
    """Return an Arrow column, or whole rows, as Python values; for bytes that are not UTF-8, the error."""
    if name is None:
        column = batch.to_struct_array()
    else:
        import pyarrow.compute  # not at the top: it would slow down --help

        value_of(as_record(batch.schema), name)
        head, rest = (name, "") if name in batch.schema.names else name.split(".", 1)
        column = batch.column(head)
        while rest:
            names = [field.name for field in column.type]
            head, rest = (rest, "") if rest in names else rest.split(".", 1)
            column = pyarrow.compute.struct_field(column, head)
    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # find the rows at fault
        values = []
        for value in column:
            try:
                values.append(value.as_py())
            except UnicodeDecodeError as error:
                values.append(error)
        return values
