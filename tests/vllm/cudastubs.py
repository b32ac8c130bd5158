"""cudastubs.py TORCH_LIB: lets PyPI's torch, which is built for CUDA, load where no CUDA library is.

The dynamic linker wants each library that torch's own libraries name, and each function in it that they link against. For those that are
nowhere on this machine this writes empty ones into TORCH_LIB, where torch's libraries look first. Every function answers 100, which is
cudaErrorNoDevice, so that torch finds no GPU and computes on the CPU. For tests only.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# How the functions of a library begin whose name does not say so. Only asked where a library gives its symbols no version.
PREFIXES = {"cufile": "cuFile", "cusparselt": "cusparseLt", "nvshmemhost": "nvshmem"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(library):
    """The names of the libraries that this one is linked against."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "--dynamic", "--wide", library)))


def versions(library):
    """Which library each version of a wanted symbol comes from."""
    origin, file = {}, ""
    section = output("readelf", "--version-info", "--wide", library).partition(".gnu.version_r")[2]
    for file_name, version in re.findall(r"File: (\S+)|Name: (\S+)", section):
        if file_name:
            file = file_name
        else:
            origin[version] = file
    return origin


def symbols(library):
    """Yields name, version and whether it is defined here, for each dynamic symbol."""
    for line in output("readelf", "--dyn-syms", "--wide", library).splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[4] in ("GLOBAL", "WEAK"):
            name, _, version = columns[7].partition("@")
            yield name, version.lstrip("@"), columns[6] != "UND", columns[4] == "WEAK"


def survey(libraries):
    """Returns by library and version the symbols that are wanted, and those without a version that nobody defines."""
    wanted = collections.defaultdict(lambda: collections.defaultdict(set))
    loose, defined = set(), set()
    for library in libraries:
        origin = versions(library)
        for name, version, here, weak in symbols(library):
            if here:
                defined.add(name)
            elif version and version in origin:
                wanted[origin[version]][version].add(name)
            elif not version and not weak:
                loose.add(name)
    return wanted, loose - defined


def build(path, by_version):
    """Writes a shared library with these functions. A version "" has none."""
    source = "".join(f"long {name}(void) {{ return 100; }}\n" for names in by_version.values() for name in sorted(names))
    script = "".join(f"{version} {{ global: {' '.join(n + ';' for n in sorted(names))} }};\n"
                     for version, names in by_version.items() if version)
    with tempfile.TemporaryDirectory() as folder:
        code, map_ = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "stub.map")
        code.write_text(source)
        map_.write_text(script)
        versioned = [f"-Wl,--version-script={map_}"] if script else []
        subprocess.run(["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", "-o", path, code, f"-Wl,-soname,{path.name}", *versioned], check=True)


def main(folder):
    libraries = sorted(folder.glob("*.so*"))
    there = {library.name for library in libraries} | {line.split()[0] for line in output("ldconfig", "-p").splitlines()[1:] if line.split()}
    wanted, loose = survey(libraries)
    for missing in sorted(set().union(*map(needed, libraries)) - there):
        by_version = dict(wanted[missing])
        if not by_version:
            stem = re.match(r"lib([a-zA-Z_]+)", missing)[1].lower().replace("_", "")
            prefix = PREFIXES.get(stem, stem)
            by_version = {"": {name for name in loose if name.startswith(prefix)}}
        build(folder / missing, by_version)
        print(f"{missing}: {sum(map(len, by_version.values()))} functions")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
