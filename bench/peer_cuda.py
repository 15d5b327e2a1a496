#!/usr/bin/env python3
"""llama.cpp's llama-bench and llama-batched-bench on CUDA without building llama.cpp: bench/peer_cuda.py DIR [--arch
sm_90] [--jobs N]. Needs npm, git, g++ and of CUDA's programs cuobjdump, ptxas and fatbinary; a GPU where they run, not
here.

The libraries are node-llama-cpp's for CUDA 13, whose kernels for sm_90 are PTX of CUDA 13.1: ptxas compiles them here,
as it would in a build, because drivers of CUDA 13.0 refuse that PTX and newer ones compile it at the first call. Both
programs are compiled from the source that the same release carries. DIR then holds all that is needed but CUDA's
libcudart.so.13 and libcublas.so.13:

    tools/make_bench_gguf.py llama-8b 8b.gguf
    LD_LIBRARY_PATH=/usr/local/cuda/lib64 DIR/llama-bench -m 8b.gguf -ngl 99 -fa 1 -p 2048 -n 128 -d 512
    … DIR/llama-batched-bench -m 8b.gguf -ngl 99 -fa 1 -c 36864 -npp 512 -ntg 32 -npl 1,4,8,16,32,64
"""

import argparse
import concurrent.futures
import pathlib
import re
import shutil
import struct
import subprocess

VERSION = "3.22.1"  # of node-llama-cpp; llama.cpp v0.5.0
PACKAGES = {"libraries": "@node-llama-cpp/linux-x64-cuda", "source": "node-llama-cpp"}
LIBRARIES = ["libllama-common.so", "libllama.cuda.v0.5.0.so", "libggml.cuda.v0.5.0.so", "libggml-base.so"]
CONTAINER = struct.pack(
    "<IHH", 0xBA55ED50, 1, 16
)  # what each source file's kernels begin with; then the bytes behind these 16

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("directory", type=pathlib.Path)
parser.add_argument("--arch", default="sm_90", help="one that the library has PTX for: sm_75, sm_80 or sm_90")
parser.add_argument("--jobs", type=int, default=1)
a = parser.parse_args()
work = a.directory.resolve() / "build"


def run(*command, cwd=None):
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def fetch(folder, package):
    if not (work / folder).exists():
        archive = run("npm", "pack", "--silent", f"{package}@{VERSION}", cwd=work).split()[-1]
        shutil.unpack_archive(work / archive, work / (folder + ".part"))
        (work / (folder + ".part")).rename(work / folder)


def compile_program(name, source, libraries):
    tool = work / "llama.cpp" / "tools" / source
    include = [f"-I{work / 'llama.cpp' / part}" for part in ("common", "include", "ggml/include", "vendor")]
    run(
        "g++",
        "-std=c++17",
        "-O2",
        *include,
        tool / f"{source}.cpp",
        tool / "main.cpp",
        "-o",
        a.directory / name,
        f"-L{libraries}",
        *(f"-l:{library}" for library in LIBRARIES),
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--allow-shlib-undefined",
    )


def compile_kernels(ptx):
    """CUDA 13.0's ptxas, and with it the driver, takes these kernels as well: they use nothing of 13.1's."""
    fatbin = ptx.with_suffix(".fatbin")
    if not fatbin.exists():
        cubin = ptx.with_suffix(".cubin")
        if not cubin.exists():
            older = ptx.with_suffix(".older")
            older.write_text(re.sub(r"^\.version 9\.1$", ".version 9.0", ptx.read_text(), count=1, flags=re.MULTILINE))
            run("ptxas", f"-arch={a.arch}", older, "-o", cubin)
            older.unlink()
        run(
            "fatbinary",
            "-64",
            "--compress-all",
            f"--create={fatbin}",
            f"--image3=kind=elf,sm={a.arch[3:]},file={cubin}",
        )
    return fatbin.read_bytes()


def compile_library(library, out):
    """Each container of PTX and of machine code for other GPUs is replaced by one with this GPU's code, which has room
    in its place.
    """
    ptx = work / a.arch
    if not ptx.exists():
        (work / "part").mkdir(exist_ok=True)
        run("cuobjdump", "-arch", a.arch, "-xptx", "all", library, cwd=work / "part")
        (work / "part").rename(ptx)
    files = sorted(ptx.glob("*.ptx"), key=lambda file: int(file.name.split(".")[1]))
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        compiled = list(pool.map(compile_kernels, files))
    image = bytearray(library.read_bytes())
    places = [match.start() for match in re.finditer(re.escape(CONTAINER), image)]
    assert len(places) == len(compiled), "other containers than cuobjdump finds"
    for at, new in zip(places, compiled):
        size = 16 + struct.unpack_from("<Q", image, at + 8)[0]
        assert len(new) <= size, "no room for the compiled kernels"
        image[at : at + size] = new.ljust(size, b"\0")
    out.write_bytes(image)


work.mkdir(parents=True, exist_ok=True)
for folder, package in PACKAGES.items():
    fetch(folder, package)
if not (work / "llama.cpp").exists():
    run(
        "git",
        "-c",
        "advice.detachedHead=false",
        "clone",
        "-q",
        work / "source" / "package" / "llama" / "gitRelease.bundle",
        work / "llama.cpp",
    )
libraries = work / "libraries" / "package" / "bins" / "linux-x64-cuda"
for file in [libraries / name for name in LIBRARIES] + list(libraries.glob("libggml-cpu-*.so")):
    shutil.copy(file, a.directory)
compile_program("llama-bench", "llama-bench", libraries)
compile_program("llama-batched-bench", "batched-bench", libraries)
compile_library(libraries / "libggml-cuda.so", a.directory / "libggml-cuda.so")
