"""vllm_serve.py: writes the variables of `vllm serve`, as its own parser of arguments knows them.

Run it with the Python of an environment in which vLLM can be imported: .tools/vllm's, see scripts/vllm.sh.
Bounds come from the configuration classes of vLLM, whose fields are named as the flags are.
"""
import argparse
import contextlib
import inspect
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rows

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def actions():
    """The actions of the parser of `vllm serve`. Nothing else of vLLM may print to the table."""
    with contextlib.redirect_stdout(sys.stderr):
        from vllm.entrypoints.cli.serve import ServeSubcommand

        try:
            from vllm.utils.argparse_utils import FlexibleArgumentParser
        except ImportError:
            from vllm.utils import FlexibleArgumentParser
        return ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())._actions


def bounds():
    """The bounds of the fields of all configuration classes, by name."""
    import pydantic
    import vllm.config

    found = {}
    for _, cls in inspect.getmembers(vllm.config, inspect.isclass):
        fields = getattr(cls, "__dataclass_fields__", {})
        for name, field in fields.items():
            info = field.default if isinstance(field.default, pydantic.fields.FieldInfo) else getattr(cls, "__pydantic_fields__", {}).get(name)
            for limit in getattr(info, "metadata", None) or []:
                for word, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
                    value = getattr(limit, word, None)
                    if value is not None:
                        found.setdefault(name, {})[sign] = value
    return {name: " ".join(f"{sign}{value:g}" for sign, value in sorted(limits.items())) for name, limits in found.items()}


def kind_of(parse):
    """The type of the values that a function of the parser accepts."""
    if parse in (None, str):
        return "string"
    if parse in (int, float):
        return {int: "integer", float: "number"}[parse]
    name = getattr(parse, "__name__", "")
    if parse is json.loads:
        return "json"
    if name.startswith("human_readable_int"):
        return "integer|string"
    if name in ("parse_dataclass", "union_dict_and_str"):
        return "object|string"
    if name == "_optional_type" or name == "_parse_type":
        inner = [c.cell_contents for c in parse.__closure__ or () if callable(c.cell_contents)]
        kinds = {kind_of(f) for f in inner} - {"string"}
        return "|".join(sorted(kinds - {"json"})) or "json" if kinds else "string"
    return "string"


def rows_of(action, limits):
    names = [n for n in action.option_strings if n.startswith("--")]
    choices = sorted(action.choices, key=str) if isinstance(action.choices, (set, frozenset)) else action.choices
    values = [v for v in choices or () if v is not None and v != "None"]
    kind = kind_of(action.type)
    if isinstance(action, argparse.BooleanOptionalAction):
        # Newer releases also have --disable-x for --enable-x. They take --no-enable-x, too, without
        # listing it.
        inverse = {"--enable-": "--disable-", "--disable-": "--enable-"}
        for name in names:
            opposite = next((other + names[0][len(prefix):] for prefix, other in inverse.items() if names[0].startswith(prefix)), "")
            if not name.startswith("--no-"):
                yield rows.row(name, "flag" if name == opposite else "switch", default=action.default)
        return
    if action.nargs == 0:
        kind, values = "flag", []
    elif action.nargs in ("+", "*"):
        kind = "list " + kind
    if values and not isinstance(values[0], str):
        kind = "integer"
    if not kind.startswith(("integer", "number")):
        limits = {}
    default = None if action.default is argparse.SUPPRESS else action.default
    for name in names:
        bound = limits.get(name.lstrip("-").replace("-", "_"), "")
        yield rows.row(name, kind, bounds=bound, values=values, default=getattr(default, "value", default))


def main():
    every = actions()
    limits = bounds()
    rows.write(r for action in every if "--help" not in action.option_strings for r in rows_of(action, limits))


main()
