#!/usr/bin/env python3
"""The SBOM of an archive: SPDX 2.3 as JSON, on standard output.

packaging/sbom.py NAME VERSION EPOCH PACKAGES.tsv FILE: the file is made of Apus, of the packages in the table (name and
version) and, where it is the program, of what the web app is built of (app/package.json).
"""

import datetime
import hashlib
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LICENSES = {
    "cuda-cudart": "LicenseRef-NVIDIA-CUDA-EULA",
    "curl": "curl",
    "libbsd-dev": "BSD-3-Clause AND BSD-2-Clause AND ISC AND Beerware AND MIT",
    "libedit-dev": "BSD-3-Clause",
    "libjpeg62-turbo-dev": "IJG AND BSD-3-Clause AND Zlib",
    "libmd-dev": "BSD-3-Clause AND BSD-2-Clause AND ISC AND Beerware",
    "libncurses-dev": "X11-distribute-modifications-variant",
    "libpng-dev": "libpng-2.0",
    "libsqlite3-dev": "blessing",
    "libssl-dev": "Apache-2.0",
    "libtinfo6": "X11-distribute-modifications-variant",
    "libwebp-dev": "BSD-3-Clause",
    "zlib1g-dev": "Zlib",
    "@preact/signals": "MIT",
    "dompurify": "MPL-2.0 OR Apache-2.0",
    "highlight.js": "BSD-3-Clause",
    "htm": "Apache-2.0",
    "marked": "MIT",
    "pdfjs-dist": "Apache-2.0",
    "preact": "MIT",
    "temml": "MIT",
}


def identifier(name):
    return "SPDXRef-" + "".join(c if c.isalnum() or c == "." else "-" for c in name)


def package(name, version, purl):
    entry = {
        "SPDXID": identifier(name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": LICENSES[name],
        "copyrightText": "NOASSERTION",
    }
    if purl:
        entry["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        ]
    return entry


def parts(table, program):
    for line in open(table):
        name, version = line.rstrip("\n").split("\t")
        kind = "source" if name == "curl" else None
        if name == "cuda-cudart":
            yield package(name, version, "pkg:generic/cuda-cudart@" + version)
        else:
            yield package(name, version, f"pkg:deb/debian/{name}@{version}" + ("?arch=source" if kind else ""))
    if program:
        with open(os.path.join(ROOT, "app", "package.json")) as file:
            for name, version in sorted(json.load(file)["dependencies"].items()):
                yield package(name, version, f"pkg:npm/{name.replace('@', '%40')}@{version}")


def main(name, version, epoch, table, path):
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    inside = list(parts(table, os.path.basename(path) == "apus"))
    LICENSES["apus"] = "MIT"
    apus = package("apus", version, None)
    apus["checksums"] = [{"algorithm": "SHA256", "checksumValue": digest}]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest}",
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            ),
            "creators": ["Tool: packaging/sbom.py"],
        },
        "packages": [apus, *inside],
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": apus["SPDXID"],
            },
            *(
                {
                    "spdxElementId": apus["SPDXID"],
                    "relationshipType": "CONTAINS" if "npm" in str(part) else "STATIC_LINK",
                    "relatedSpdxElement": part["SPDXID"],
                }
                for part in inside
            ),
        ],
    }
    references = sorted({p["licenseDeclared"] for p in inside if p["licenseDeclared"].startswith("LicenseRef-")})
    if references:
        document["hasExtractedLicensingInfos"] = [
            {"licenseId": reference, "extractedText": "https://docs.nvidia.com/cuda/eula/"} for reference in references
        ]
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
