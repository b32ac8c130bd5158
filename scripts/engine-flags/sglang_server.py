"""sglang_server.py: writes the variables of SGLang's server from its source, which is read and never run.

    pip download --no-deps sglang==0.5.23 && unzip sglang-*.whl 'sglang/srt/*' && python3 sglang_server.py sglang/srt

Fields are annotated with their flags (A[type, "help"] and A[type, Arg(...)]), and older or special flags are added by add_argument.
"""
import ast
import pathlib
import sys

import rows

UNKNOWN = object()
KINDS = {"int": "integer", "float": "number", "str": "string", "bool": "flag"}
# Functions that parse a value of their own, and what they take.
PARSERS = {"json_list_type": "json", "loads": "json", "nullable_str": "string", "human_readable_int": "integer|string"}


class Source:
    """The constants, fields and calls of some files."""

    def __init__(self, files):
        self.constants, self.fields, self.calls = {}, [], []
        for tree in [ast.parse(f.read_text()) for f in files]:
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.constants.setdefault(node.targets[0].id, node.value)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.fields += [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                    self.calls.append(node)
        self.defaults = {n.target.id: self.value(n.value) for n in self.fields if n.value}

    def value(self, node):
        """The value of an expression of constants, or UNKNOWN."""
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.value(self.constants[node.id])
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ServerArgs":
            return self.defaults.get(node.attr, UNKNOWN)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self.value(node.left), self.value(node.right)]
            return parts[0] + parts[1] if all(isinstance(p, list) for p in parts) else UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            return UNKNOWN


def kind_of(annotation):
    """The type and the values of an annotation such as Optional[Literal["a", "b"]]."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.BinOp):
        return kind_of(annotation.left)
    if isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value)
        inner = annotation.slice
        if outer == "Optional":
            return kind_of(inner)
        if outer == "Literal":
            values = [e.value for e in getattr(inner, "elts", [inner])]
            return ("integer" if isinstance(values[0], int) else "string"), values
        if outer in ("List", "list"):
            return "list " + kind_of(inner)[0], []
        if outer in ("Dict", "dict"):
            return "object", []
        if outer == "Union":
            return kind_of(inner.elts[0])
    return KINDS.get(ast.unparse(annotation), "string"), []


def of_field(source, node):
    """The rows of an annotated field."""
    if not (isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) in ("A", "Annotated")):
        return
    annotation, *extra = node.annotation.slice.elts
    kind, values = kind_of(annotation)
    flag = "--" + node.target.id.replace("_", "-")
    names, options = [flag], {}
    arg = next((e for e in extra if isinstance(e, ast.Call) and getattr(e.func, "id", "") == "Arg"), None)
    if arg is None and not any(isinstance(e, (ast.Constant, ast.JoinedStr, ast.BinOp)) for e in extra):
        return
    if arg is not None:
        options = {k.arg: k.value for k in arg.keywords}
        if "no_cli" in options and source.value(options["no_cli"]):
            return
        names = [source.value(options["cli_name"])] if "cli_name" in options else names
        names = names + (source.value(options["aliases"]) if "aliases" in options else [])
    yield from of_options(source, names, kind, values, options, source.defaults.get(node.target.id))


def of_call(source, node):
    """The rows of a call of add_argument."""
    names = [source.value(a) for a in node.args]
    options = {k.arg: k.value for k in node.keywords}
    parse = ast.unparse(options["type"]) if "type" in options else "str"
    kind = PARSERS.get(parse.split(".")[-1], KINDS.get(parse, "string"))
    default = source.value(options["default"]) if "default" in options else None
    yield from of_options(source, names, kind, [], options, default)


def of_options(source, names, kind, values, options, default):
    """The rows of a flag with the options of argparse."""
    action = ast.unparse(options["action"]).strip("'\"") if "action" in options else ""
    if "choices" in options:
        listed = source.value(options["choices"])
        values = [] if listed is UNKNOWN else sorted(listed) if isinstance(listed, set) else list(listed)
    if "type_parser" in options:
        kind = PARSERS.get(ast.unparse(options["type_parser"]).split(".")[-1], "string")
    if "nargs" in options and not kind.startswith("list"):
        nargs = source.value(options["nargs"])
        kind = "list " + kind if nargs in ("+", "*") else kind
    if action.endswith("BooleanOptionalAction"):
        kind, values = "switch", []
    elif action in ("store_true", "store_false") or "StoreTrue" in action or "StoreConst" in action and "nargs" not in options:
        kind, values = "flag", []
    elif "LoRAPath" in action:
        kind = "list string"
    values = [v for v in values if v is not None]
    if default is UNKNOWN or isinstance(default, (list, dict, tuple)):
        default = None
    for name in names:
        if isinstance(name, str) and name.startswith("--"):
            yield rows.row(name, kind, values=values, default=default)


def main():
    root = pathlib.Path(sys.argv[1])
    source = Source([root / "server_args.py", *sorted((root / "arg_groups").rglob("*.py"))])
    every = [r for n in source.calls for r in of_call(source, n)] + [r for n in source.fields for r in of_field(source, n)]
    rows.write(r for r in every if r[0] != "help")


main()
