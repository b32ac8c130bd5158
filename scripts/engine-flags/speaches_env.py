"""speaches_env.py: writes the variables of speaches (faster-whisper's server), which are its environment, from its source.

    git show v0.9.0-rc.3:src/speaches/config.py | python3 speaches_env.py
"""
import ast
import re
import sys

import rows

KINDS = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "SecretStr": "string"}


def main():
    # `type X = …` is newer than some Pythons.
    tree = ast.parse(re.sub(r"(?m)^type (\w+) =", r"\1 =", sys.stdin.read()))
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    named = {}
    for n in tree.body:
        if isinstance(n, ast.Assign):
            named[n.targets[0].id] = n.value
        if isinstance(n, ast.ClassDef) and ast.unparse(n.bases[0]).endswith("Enum"):
            named[n.name] = ast.parse("Literal[%s]" % ", ".join(ast.unparse(a.value) for a in n.body if isinstance(a, ast.Assign)), mode="eval").body

    def kind_of(annotation):
        if isinstance(annotation, ast.Name) and annotation.id in named:
            return kind_of(named[annotation.id])
        if isinstance(annotation, ast.BinOp):
            parts = [p for p in (annotation.left, annotation.right) if ast.unparse(p) != "None"]
            kinds = [kind_of(p)[0] for p in parts]
            return "|".join(kinds), kind_of(parts[0])[1]
        if isinstance(annotation, ast.Subscript):
            outer = ast.unparse(annotation.value)
            if outer == "Literal":
                return "string", [e.value for e in getattr(annotation.slice, "elts", [annotation.slice])]
            return "json", []
        return KINDS.get(ast.unparse(annotation), "json"), []

    def of_class(name, path):
        for field in classes[name].body:
            if not isinstance(field, ast.AnnAssign) or field.target.id.startswith("_"):
                continue
            own, default, bounds, variable = field.target.id, field.value, "", ""
            if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":
                options = {k.arg: k.value for k in default.keywords}
                default = options.get("default", default.args[0] if default.args else None)
                bounds = " ".join(sign + ast.unparse(options[word]) for word, sign in (("ge", ">="), ("gt", ">"), ("le", "<=")) if word in options)
                variable = options["alias"].value if "alias" in options else ""
            kind = ast.unparse(field.annotation)
            if kind in classes and kind not in named:
                yield from of_class(kind, path + [own])
                continue
            types, values = kind_of(field.annotation)
            try:
                value = ast.literal_eval(default)
            except (ValueError, TypeError):
                value = None
            # A nested field has its own name, as long as no other has it.
            yield rows.row(own, types, bounds=bounds, values=values, default=value, environment=variable or "__".join(path + [own]).upper())

    rows.write(of_class("Config", []))


main()
