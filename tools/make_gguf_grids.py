#!/usr/bin/env python3
"""Writes src/import/gguf/grids.c: the code books of GGUF's IQ types, as the gguf package has them.
Made with gguf 0.19.0, numpy 2.4.6, Python 3.11:  tools/make_gguf_grids.py && tools/lint.sh format
"""

from pathlib import Path

import numpy as np
from gguf.quants import IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS

HEAD = """/* Written by tools/make_gguf_grids.py: the code books of GGUF's IQ types, from the Python package gguf (quants.py). */
#include "import/gguf/grids.h"
"""  # noqa: E501


def main():
    out = [HEAD]
    for book in (IQ1_S, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S):
        book.init_grid()
        rows = book.grid.reshape(book.grid_shape)
        bits = 2 if len(book.grid_map) == 3 else 3
        places = np.searchsorted(np.array(book.grid_map, dtype=np.float32), rows).astype(np.uint32)
        words = (places << (bits * np.arange(rows.shape[1], dtype=np.uint32))).sum(axis=1)
        name = book.qtype.name.lower()
        out.append(f"const uint16_t gguf_grid_{name}[{len(words)}] = {{{', '.join(f'0x{w:x}' for w in words)}}};\n")
    path = Path(__file__).resolve().parent.parent / "src/import/gguf/grids.c"
    path.write_text("\n".join(out))
    print(f"{path}: {sum(1 for _ in path.open())} lines")


if __name__ == "__main__":
    main()
