#!/usr/bin/env python3
"""Copies the tables that the binary prints into the documents: tools/write_docs.py [build/apus]

`apus debug fields` prints each table after a marker line (<!-- fields of ROUTES -->). In a document the marker and the
table lines behind it are replaced. tests/server/test_fields.c fails where a document and the binary differ."""

import pathlib
import re
import subprocess
import sys

TABLE = re.compile(r"^<!-- (?:fields of|members in) .* -->\n(?:\|.*\n)*", re.M)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    apus = sys.argv[1] if len(sys.argv) > 1 else root / "build/apus"
    printed = subprocess.run([apus, "debug", "fields"], check=True, capture_output=True, text=True).stdout
    tables = {table.split("\n", 1)[0]: table for table in TABLE.findall(printed)}
    for path in sorted((root / "docs").rglob("*.md")):
        old = path.read_text(encoding="utf-8")
        new = TABLE.sub(lambda match: tables.pop(match.group().split("\n", 1)[0], match.group()), old)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(root)}: written")
    for marker in tables:
        print(f"no document has {marker}", file=sys.stderr)
    return 1 if tables else 0


if __name__ == "__main__":
    sys.exit(main())
