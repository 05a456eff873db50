"""YAML by Kubernetes' rules, with limits.

`kubectl` converts YAML to JSON with sigs.k8s.io/yaml, which implements a subset of YAML 1.1: `yes`, `on` and `y` are
true, `010` is octal, and there are no base-60 numbers (`1:30` is text) and no times (text, too). Integral floats are
written as integers, and keys become text. PyYAML's own rules differ in all of these.

A short text can expand to a huge document (aliases, merged keys), and deep nesting can crash the parser's C code, so
both are checked first.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

import yaml

from dsf.api.problems import Location, format_field_path

#: Maximum nesting of a document.
MAX_DEPTH: Final = 50

_TAG: Final = "tag:yaml.org,2002:"
_BOOLS: Final = ("y", "yes", "true", "on", "n", "no", "false", "off")
_BOOL_PATTERN: Final = re.compile("|".join(form for word in _BOOLS for form in (word, word.title(), word.upper())))
_NULL_PATTERN: Final = re.compile(r"~|null|Null|NULL|")
_INT_PATTERN: Final = re.compile(r"[-+]?(?:0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+|0|[1-9][0-9_]*)")
_FLOAT_PATTERN: Final = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)

_Base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(ValueError):
    """Raised for an invalid document. `line` counts from 0; `location` is the path of the field, if any."""

    def __init__(self, line: int, message: str, location: Location = ()) -> None:
        field_prefix = f"{format_field_path(location)}: " if location else ""
        super().__init__(f"line {line + 1}: {field_prefix}{message}")
        self.line = line
        self.message = message
        self.location = location


class Loader(_Base):  # type: ignore[misc, valid-type]
    """A loader for Kubernetes' types, without the limits of `load`."""

    bool_values: ClassVar = {**_Base.bool_values, "y": True, "n": False}

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float | int:
        value: float = super().construct_yaml_float(node)
        # Go's JSON writes floats from 1e21 on with an exponent.
        return int(value) if value.is_integer() and abs(value) < 1e21 else value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        return {_convert_key(key, node): value for key, value in mapping.items()}


def _convert_key(key: Any, node: yaml.Node) -> str:
    match key:
        case str():
            return key
        case bool():
            return "true" if key else "false"
        case int() | float():
            return str(key)
    raise yaml.constructor.ConstructorError(problem="a key is neither text nor a number", problem_mark=node.start_mark)


Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", _BOOL_PATTERN, "yYnNtTfFoO"),
    ("null", _NULL_PATTERN, ["~", "n", "N", ""]),
    ("merge", re.compile("<<"), "<"),
    ("int", _INT_PATTERN, "-+0123456789"),
    ("float", _FLOAT_PATTERN, "-+.0123456789"),
):
    Loader.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(rf"(?:{_pattern.pattern})\Z"), list(_first))
Loader.yaml_constructors = {
    f"{_TAG}null": _Base.construct_yaml_null,
    f"{_TAG}bool": _Base.construct_yaml_bool,
    f"{_TAG}int": _Base.construct_yaml_int,
    f"{_TAG}float": Loader.construct_yaml_float,
    f"{_TAG}str": _Base.construct_yaml_str,
    f"{_TAG}timestamp": _Base.construct_yaml_str,
    f"{_TAG}seq": _Base.construct_yaml_seq,
    f"{_TAG}map": _Base.construct_yaml_map,
    None: _Base.construct_undefined,
}


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A dumper that also quotes texts that only PyYAML reads as strings, such as `1e3`, `08` and `y`.

    The output contains no anchors and aliases, so that people can read it.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _first, _kinds in Loader.yaml_implicit_resolvers.items():
    for _kind, _form in _kinds:
        Dumper.add_implicit_resolver(_kind, _form, [_first])


def dump(data: Any) -> str:
    """Return plain data as YAML, with keys in their order."""
    text: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def load(text: str) -> Any:
    """Parse the single document in `text`; return None if the text is empty. Raises YamlError."""
    root = compose_nodes(text)
    return None if root is None else construct(root)


def compose_nodes(text: str) -> yaml.Node | None:
    """Return the document's node tree after checking the limits; None if the text is empty. Raises YamlError."""
    try:
        data = text.encode()
        _check_depth(data)
        root: yaml.Node | None = Loader(data).get_single_node()
    except UnicodeEncodeError as error:
        raise YamlError(text.count("\n", 0, error.start), "is not valid Unicode text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # libyaml reports an unclosed element on the line after the last one.
        line = min(mark.line, text.count("\n")) if mark else 0
        raise YamlError(line, f"is not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        raise YamlError(0, f"is not YAML: {error.reason}") from None
    if root is not None:
        # The limit grows with the text, because a List may be large, and a text without aliases has few nodes per byte.
        _check_tree(root, max(20_000, len(data) // 8))
    return root


def construct(root: yaml.Node) -> Any:
    """Return the data in a node tree. Raises YamlError."""
    try:
        return Loader(b"").construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or root.start_mark
        raise YamlError(mark.line, f"is not YAML: {error.problem}") from None
    except (ValueError, LookupError) as error:
        # The value does not match its tag, such as !!int, or is a number with more digits than Python reads.
        raise YamlError(root.start_mark.line, f"is not YAML: a value is not what its tag says ({error})") from None


def _check_depth(data: bytes) -> None:
    """Raise YamlError for deep nesting.

    The check precedes the composition of nodes, because libyaml's binding recurses in C and can crash the process.
    """
    loader = Loader(data)
    depth = 0
    while loader.check_event():
        event = loader.get_event()
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise YamlError(event.start_mark.line if event.start_mark else 0, "is nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_tree(root: yaml.Node, max_nodes: int) -> None:
    """Raise YamlError for duplicate keys, and for more than `max_nodes` nodes after expansion of aliases.

    The API server also rejects both.
    """
    node_count = 0
    pending_nodes: list[tuple[yaml.Node, Location]] = [(root, ())]
    while pending_nodes:
        node, location = pending_nodes.pop()
        node_count += 1
        # Aliases can expand a short text without bound.
        if node_count > max_nodes or len(location) > MAX_DEPTH:
            raise YamlError(root.start_mark.line, "is too large once its aliases are followed")
        if isinstance(node, yaml.MappingNode):
            key_names: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    # Do not quote the key, because aliases can expand the key to any size.
                    raise YamlError(key.start_mark.line, "has a key that is neither text nor a number", location)
                name = str(key.value)
                if name in key_names:
                    raise YamlError(key.start_mark.line, "is there twice", (*location, name))
                key_names.add(name)
                pending_nodes.append((value, (*location, name)))
        elif isinstance(node, yaml.SequenceNode):
            pending_nodes.extend((value, (*location, index)) for index, value in enumerate(node.value))
