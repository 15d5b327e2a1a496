#!/usr/bin/env python3
"""The Homebrew formula of a release, on standard output: packaging/formula.py VERSION FOLDER.

Linux gets the archives of the folder, macOS builds the source. APUS_RELEASE_URL is where the archives are published.
"""

import hashlib
import os
import sys

BODY = """\
class Apus < Formula
  desc "Native inference server for language models"
  homepage "{home}"
  version "{version}"
  license "MIT"
{places}
  def install
    if OS.linux?
      bin.install Dir["bin/*"]
      man1.install "share/man/man1/apus.1"
      bash_completion.install "share/bash-completion/completions/apus"
      fish_completion.install "share/fish/vendor_completions.d/apus.fish"
    else
      system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", *std_cmake_args
      system "cmake", "--build", "build", "--target", "apus"
      bin.install "build/apus"
      (man1/"apus.1").write Utils.safe_popen_read(bin/"apus", "man")
      generate_completions_from_executable(bin/"apus", "completion", shells: [:bash, :zsh, :fish])
    end
  end

  service do
    run [opt_bin/"apus", "serve", "--models-dir", var/"apus"]
    keep_alive true
    log_path var/"log/apus.log"
    error_log_path var/"log/apus.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/apus version")
  end
end
"""
PLACE = """    {when} do
      url "{url}/{name}"
      sha256 "{digest}"
    end
"""
SOURCE = """  on_macos do
    url "{url}/{name}"
    sha256 "{digest}"
    depends_on "cmake" => :build
    depends_on "ninja" => :build
    depends_on "jpeg-turbo"
    depends_on "libpng"
    depends_on "openssl@3"
    depends_on "webp"
    uses_from_macos "curl"
    uses_from_macos "libedit"
  end
"""


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def main(version, folder):
    url = os.environ.get("APUS_RELEASE_URL", f"https://example.org/apus/{version}")
    places = ""
    source = f"apus-{version}-source.tar.gz"
    if os.path.exists(os.path.join(folder, source)):
        places += "\n" + SOURCE.format(url=url, name=source, digest=digest(os.path.join(folder, source)))
    linux = ""
    for when, machine in (("on_intel", "x86_64"), ("on_arm", "aarch64")):
        name = f"apus-{version}-linux-{machine}.tar.gz"
        if os.path.exists(os.path.join(folder, name)):
            linux += PLACE.format(when=when, url=url, name=name, digest=digest(os.path.join(folder, name)))
    if linux:
        places += "\n  on_linux do\n" + linux + "  end\n"
    print(BODY.format(home=url, version=version, places=places), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
