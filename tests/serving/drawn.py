"""Requests drawn from a server's own OpenAPI: values of each field's type and range, and some of neither."""

import random
import string

JUNK = [
    None,
    True,
    -1,
    0,
    3,
    2.5,
    1e300,
    "",
    "x",
    [],
    [[]],
    {},
    [None],
    {"a": 1},
    ["x", 1],
    "\u0000",
    "é" * 30,
]
WORDS = ["Once", "upon a time", "a", "42 ", "\n", "é€", " "]


class Drawn:
    """Draws bodies for one endpoint.

    Args:
        openapi: the document.
        path: of the endpoint.
        draw: a generator of its own.
    """

    def __init__(self, openapi: dict, path: str, draw: random.Random):
        self.schemas = openapi["components"]["schemas"]
        body = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        self.schema = self.resolved(body)
        self.draw = draw

    def resolved(self, schema):
        while "$ref" in schema:
            schema = self.schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def body(self, junk: float):
        """Return a body; each field is one of ``JUNK`` with probability ``junk``."""
        body = {}
        required = self.schema["required"]
        for name, schema in self.schema["properties"].items():
            if name in required or self.draw.random() < 0.25:
                body[name] = (
                    self.draw.choice(JUNK) if self.draw.random() < junk else self.value(schema)
                )
        if self.draw.random() < junk:
            name = "".join(self.draw.choices(string.ascii_lowercase, k=6))
            body[name] = self.draw.choice(JUNK)
        return body

    def value(self, schema):
        schema = self.resolved(schema)
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self.value(self.draw.choice(schema[several]))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.draw.choice(schema["enum"])
        return getattr(self, f"_{schema.get('type', 'null')}")(schema)

    def _null(self, schema):
        return None

    def _boolean(self, schema):
        return self.draw.random() < 0.5

    def _integer(self, schema):
        low = int(max(schema.get("minimum", 0), -4))
        high = int(min(schema.get("maximum", low + 4), low + 4))
        return self.draw.randint(low, high)

    def _number(self, schema):
        return round(self.draw.uniform(schema.get("minimum", 0), schema.get("maximum", 1)), 2)

    def _string(self, schema):
        least = schema.get("minLength", 0)
        text = "".join(self.draw.choices(WORDS, k=self.draw.randint(0, 4)))
        return text if len(text) >= least else "stop"

    def _array(self, schema):
        least = schema.get("minItems", 0)
        length = self.draw.randint(least, min(schema.get("maxItems", least + 3), least + 3))
        return [self.value(schema.get("items", {})) for _ in range(length)]

    def _object(self, schema):
        if "properties" not in schema:
            inner = schema.get("additionalProperties", {})
            return {
                str(self.draw.randint(0, 90)): self.value(inner)
                for _ in range(self.draw.randint(0, 3))
            }
        required = schema.get("required", [])
        made = {}
        for name, each in schema["properties"].items():
            if name in required or self.draw.random() < 0.3:
                made[name] = self.value(each)
        return made
