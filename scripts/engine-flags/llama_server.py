"""llama_server.py: writes the variables of llama-server, as its --help lists them.

    llama-server --help | python3 llama_server.py
"""
import re
import sys

import rows


# The column in which descriptions begin. Longer names have their description on the next line.
COLUMN = 40


def entries(text):
    """Yields the names and the description of each entry of the help."""
    names, description = "", ""
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            if names:
                yield names, description
            short = len(line) > COLUMN and line[COLUMN - 1] == " " and line[COLUMN] != "-"
            names, description = (line[:COLUMN], line[COLUMN:]) if short else (line, "")
        elif line.startswith(" ") and names:
            description += " " + line.strip()
    if names:
        yield names, description


def kind_of(metavar, default):
    """The type of a value that the help calls metavar, and the only values if it lists them."""
    for pattern in (r"^\{([\w,-]+)\}$", r"^\[([\w|-]+)\]$", r"^<([\w|-]+)>$"):
        if m := re.match(pattern, metavar):
            values = re.split(r"[,|]", m[1])
            if all(v.isdigit() for v in values):
                return "integer", [int(v) for v in values]
            return "string", values
    if re.search(r",|\.\.\.$|\(", metavar) and not re.match(r"^<\d", metavar):
        return "list string", []
    if metavar == "N" and default == "auto":
        return "integer|string", []
    if metavar in ("PORT", "SEED", "INDEX", "SECONDS", "<0...100>") or metavar == "N" and re.match(r"^-?\d+$", default):
        return "integer", []
    return ("number" if metavar in ("N", "P") else "string"), []


def rows_of(names, description):
    # What follows the last name is what stands for a value.
    metavar = re.sub(r"^.*?(?:--?[A-Za-z][\w.-]*,?\s*)+", "", names.strip()).strip()
    names = re.findall(r"--[A-Za-z][\w.-]*", names)
    default = (re.search(r"default: '?\"?([^\s,;)'\"]+)", description) or ["", ""])[1]
    allowed = re.search(r"allowed values: ((?:[\w-]+, )*[\w-]+)", description)
    no = [n for n in names if n.startswith("--no-")]
    if not metavar:
        positive = [n for n in names if n not in no]
        for name in positive:
            with_no = "--no-" + name[2:] in no
            yield rows.row(name, "switch" if with_no else "flag", default={"enabled": "true", "disabled": "false"}.get(default, default) if with_no else None)
        for name in no:
            if "--" + name[5:] not in positive:
                yield rows.row(name, "flag")
        return
    kind, values = kind_of(metavar, default)
    if allowed:
        values = allowed[1].split(", ")
    if "comma-separated" in description and kind == "string" and not values:
        kind = "list string"
    # In words such as "same as --threads" there is no value.
    if not re.match(r"^(-?[\d.]+|auto)$", default) and default not in values:
        default = ""
    for name in names:
        yield rows.row(name, kind, values=values, default=default)


def main():
    # --fim-qwen-1.5b-default cannot be the name of a variable.
    skipped = ("--fim-qwen-1.5b-default", "--help", "--usage", "--version", "--cache-list",
               "--completion-bash", "--license", "--list-devices")
    rows.write(r for e in entries(sys.stdin.read()) for r in rows_of(*e) if "--" + r[0].replace("_", "-") not in skipped)


main()
