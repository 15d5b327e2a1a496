"""The first layers of a real model, for tests of what does not depend on sense: vocabulary, template and sizes are the
model's own, an answer costs a fraction of its. Written into the cache once.
"""

import os
import re
import struct
import sys

from apus_server import CACHE, model_path

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the scalar kinds of GGUF
STRING, ARRAY, UINT32 = 8, 9, 4


def shallow_model_path(name, layers):
    source = model_path(name)
    path = os.path.join(CACHE, f"shallow-{layers}-{name}.gguf")
    if not os.path.exists(path):
        cut(source, f"{path}.{os.getpid()}", layers)
        os.replace(f"{path}.{os.getpid()}", path)
    return path


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        (size,) = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind):
        if kind == STRING:
            (size,) = self.take("Q")
            self.at += size
        elif kind == ARRAY:
            kind, count = self.take("IQ")
            if kind in SIZES:
                self.at += SIZES[kind] * count
            else:
                for _ in range(count):
                    self.skip(kind)
        else:
            self.at += SIZES[kind]


def cut(source, target, layers):
    with open(source, "rb") as file:
        data = file.read()
    reader = Reader(data)
    magic, version, tensor_count, field_count = reader.take("4sIQQ")
    if magic != b"GGUF":
        sys.exit(f"{source} is no GGUF file")
    fields = bytearray()
    for _ in range(field_count):
        begin = reader.at
        key, (kind,) = reader.text(), reader.take("I")
        value = reader.at
        reader.skip(kind)
        if key.endswith(".block_count") and kind == UINT32:
            fields += data[begin:value] + struct.pack("<I", layers)
        else:
            fields += data[begin : reader.at]
    tensors = []
    for _ in range(tensor_count):
        begin = reader.at
        name, (dimensions,) = reader.text(), reader.take("I")
        reader.at += 8 * dimensions + 4
        tensors.append((name, data[begin : reader.at], reader.take("Q")[0]))
    base = -reader.at % 32 + reader.at
    ends = sorted([offset for _, _, offset in tensors] + [len(data) - base])
    infos, parts, size = bytearray(), [], 0
    for name, info, offset in tensors:
        layer = re.match(r"blk\.(\d+)\.", name)
        if layer and int(layer.group(1)) >= layers:
            continue
        infos += info + struct.pack("<Q", size)
        parts.append(data[base + offset : base + next(end for end in ends if end > offset)])
        size += len(parts[-1]) + -len(parts[-1]) % 32
    header = struct.pack("<4sIQQ", magic, version, len(parts), field_count) + fields + infos
    with open(target, "wb") as file:
        for part in (header, *parts):
            file.write(part + bytes(-len(part) % 32))
