"""A program that stands in for CoreX's clang++, which only a machine with a BI-V100 has."""

import json
import sys
from pathlib import Path

from pav2gen.runtime import simt

#: Stands in for CoreX's clang++: writes down how it was called, and makes what was asked for, or fails as told.
STAND_IN = """#!{python}
import json, os, struct, sys
home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if "--version" in sys.argv:
    print(open(os.path.join(home, "version")).read()); sys.exit()
if any(word.startswith("-print-prog-name") for word in sys.argv):
    print("no-such-program"); sys.exit()
with open(os.path.join(home, "calls"), "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if "-MF" in sys.argv and os.path.exists(os.path.join(home, "old")):
    sys.exit("error: unknown argument: '-MF'")
if os.path.exists(os.path.join(home, "broken")):
    os.write(2, open(os.path.join(home, "broken"), "rb").read())
    sys.exit(1)
elf = b"\\x7fELF".ljust(40, b"\\0") + struct.pack("<Q10xHH2x", 64, 64, 1) + b"section".ljust(64, b"\\0")
open(sys.argv[sys.argv.index("-o") + 1], "wb").write(elf)
if "-MF" in sys.argv:
    source, extra = sys.argv[sys.argv.index("-c") + 1], os.path.join(home, "dependencies")
    more = open(extra).read() if os.path.exists(extra) else ""
    open(sys.argv[sys.argv.index("-MF") + 1], "w").write("x.o: " + source + " " + more)
"""


def output_of(call):
    """The file that a command line makes."""
    return call[call.index("-o") + 1]


def is_current(path):
    return simt.is_current(path, simt.Digests())


class CorexMachine:
    """A folder that looks like an installation of CoreX."""

    def __init__(self, home):
        self.home = home
        compiler = home / "bin" / "clang++"
        compiler.parent.mkdir(parents=True)
        compiler.write_text(STAND_IN.format(python=sys.executable))
        compiler.chmod(0o755)
        self.version("clang version 16.0.6 (CoreX 3.2.3)")

    def breaks(self, words="k.cu:7: error: no such thing as a frobnicator"):
        """From now on it fails with these words; with None it works again."""
        file = self.home / "broken"
        file.unlink(missing_ok=True)
        if words is not None:
            file.write_bytes(words.encode() if isinstance(words, str) else words)

    def version(self, text):
        (self.home / "version").write_text(text)

    def compiled(self):
        """The names of what was made since the last question."""
        return [Path(output_of(call)).name for call in self.calls()]

    def calls(self):
        file = self.home / "calls"
        found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        file.unlink(missing_ok=True)
        return found
