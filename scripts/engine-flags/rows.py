"""rows.py: what the programs of this directory have in common: the rows of a table of variables, and how it is written.

A table holds facts only: names, types, bounds, values and defaults. Sentences of the engines' own help are not copied.
"""
import re
import sys

COLUMNS = ("variable", "type", "range", "values", "default", "environment")
# A default that is longer than this is left out: it is a structure that nobody sets as a whole.
LONGEST_DEFAULT = 40


def row(name, kind, *, bounds="", values=(), default=None, environment=""):
    """Makes one row.

    name: a flag such as --max-num-seqs, or the name of a variable.
    kind: flag (present or absent), switch (--x and --no-x), boolean (a variable of the environment), integer, number,
        string, object (JSON), or list of one of these; several joined by |.
    bounds: such as ">=1 <=8".
    values: the only values that the engine takes.
    """
    if isinstance(values, (set, frozenset)):
        values = sorted(values)  # a set has another order each time
    text = "" if default is None or kind == "flag" else str(default).strip()
    if isinstance(default, bool):
        text = text.lower()
    if len(text) > LONGEST_DEFAULT or re.search(r"[\t\n<>{}\[\]()]|^/", text):
        text = ""
    return (name.lstrip("-").replace("-", "_"), kind, bounds, ",".join(str(v) for v in values), text, environment)


def write(rows, out=sys.stdout):
    """Writes the rows in the order of their names. The first row of a name wins."""
    first = {}
    for r in rows:
        first.setdefault(r[0], r)
    lines = [COLUMNS] + [first[name] for name in sorted(first)]
    used = max(i for line in lines[1:] for i, cell in enumerate(line) if cell) + 1
    for line in lines:
        out.write("\t".join(line[:used]).rstrip("\t") + "\n")
