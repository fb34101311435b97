#!/usr/bin/env python3
"""A novel by Jane Austen as plain text, a paragraph a line, from the Debian package r-cran-janeaustenr.

  austen.py PACKAGE.deb TITLE > TEXT        for instance austen.py r-cran-janeaustenr_1.0.0-1_all.deb EMMA
"""
import io
import struct
import subprocess
import sys
import tarfile
import zlib

INSIDE = "./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
STRINGS, STRING = 16, 9  # R's types: a vector of strings, a string


def objects(data):
    """Each is its size and a zlib stream (R's lazy-load format)."""
    at = 0
    while at < len(data):
        stream = zlib.decompressobj()
        yield stream.decompress(data[at + 4 :])
        at = len(data) - len(stream.unused_data)


def lines(data):
    """The strings of a serialised vector (R Internals, "Serialization Formats", XDR, version 3)."""
    source = io.BytesIO(data)

    def number():
        return struct.unpack(">i", source.read(4))[0]

    if source.read(2) != b"X\n" or number() != 3:
        sys.exit("austen.py: not R's serialisation, version 3")
    source.read(8)  # the versions of R that wrote it and that can read it
    source.read(number())  # the encoding's name
    if number() & 0xFF != STRINGS:
        sys.exit("austen.py: not a vector of strings")
    for _ in range(number()):
        if number() & 0xFF != STRING:
            sys.exit("austen.py: not a string")
        yield source.read(number()).decode("utf-8")


def main():
    package, title = sys.argv[1:]
    archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        data = files.extractfile(INSIDE).read()
    for novel in map(list, map(lines, objects(data))):
        if novel[0].upper() != title.upper():
            continue
        for paragraph in "\n".join(novel).split("\n\n"):
            if paragraph.strip():
                print(" ".join(paragraph.split()), end="\n\n")
        return
    sys.exit(f"austen.py: {package} has no {title}")


main()
