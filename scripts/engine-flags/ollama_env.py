"""ollama_env.py: writes the variables of `ollama serve`, which are its environment, from its source.

    git show v0.32.15:envconfig/config.go | python3 ollama_env.py
"""
import re
import sys

import rows

PREFIX = "OLLAMA_"
KINDS = {"Bool": "boolean", "BoolWithDefault": "boolean", "Uint": "integer", "Uint64": "integer", "String": "string"}
# What is read by code of its own: its type.
OTHERS = {"KEEP_ALIVE": "string|integer", "LOAD_TIMEOUT": "string|integer", "DEBUG": "integer|boolean", "ORIGINS": "list string",
          "REMOTES": "list string", "MODELS": "string", "HOST": "string"}


def main():
    text = sys.stdin.read()
    kinds, defaults = dict(OTHERS), {}
    for function, name, default in re.findall(r'\b(Bool|BoolWithDefault|Uint64|Uint|String)\("' + PREFIX + r'(\w+)"(?:, ([\w<]+))?\)', text):
        kinds[name], defaults[name] = KINDS[function], default if default.isdigit() else ""
    listed = set(re.findall(r'"' + PREFIX + r'(\w+)":', text)) | set(kinds)
    mentioned = set(re.findall(r'"' + PREFIX + r'(\w+)"', text))
    rows.write(rows.row(name.lower(), kinds.get(name, "string"), bounds=">=0" if kinds.get(name) == "integer" else "", default=defaults.get(name),
                        environment=PREFIX + name) for name in sorted(listed & mentioned))


main()
