"""tei_router.py: writes the variables of text-embeddings-router from the clap arguments in its source.

    git show v1.9.3:router/src/main.rs | python3 tei_router.py
"""
import re
import sys

import rows

KINDS = {"usize": "integer", "u16": "integer", "bool": "flag", "String": "string", "Vec<String>": "list string"}
# The enumerations of the crate text_embeddings_backend. Which of the types of weights there are
# depends on how it was built.
VALUES = {"DType": ["float16", "float32", "bfloat16"], "Pool": ["cls", "mean", "splade", "last-token"]}


def main():
    text = sys.stdin.read()
    text = text[text.index("struct Args"):]
    found = []
    for attributes, name, kind in re.findall(r"#\[clap\(([^\]]*)\)\]\s*(?:#\[redact[^\]]*\]\s*)?(\w+): ([^\n]+),\n", text):
        if "long" not in attributes:
            continue
        kind = re.sub(r"^Option<(.*)>$", r"\1", kind).split("::")[-1]
        default = re.search(r'default_value = "([^"]*)"', attributes)
        takes_value = "num_args" in attributes
        found.append(rows.row("--" + name, "boolean" if takes_value else KINDS.get(kind, "string"), bounds=">=0" if kind in ("usize", "u16") else "",
                              values=VALUES.get(kind, ()), default=default and default[1]))
    rows.write(found)


main()
