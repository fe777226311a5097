#!/usr/bin/env python3
"""Reads the six novels of Jane Austen out of the Debian package r-cran-janeaustenr and writes them as plain text.

The package keeps them in the data file Rdata.rdb of GNU R, a run of records [u32 big-endian inflated length][zlib
stream]. Each inflated record is one novel in R's XDR serialisation: a vector of strings, one a line of the book.
Writes DIR/austen.txt (all six), DIR/train.txt (the first five novels) and DIR/val.txt (the last one, held out).
"""
import argparse
import hashlib
import pathlib
import struct
import sys
import zlib

SHA256 = "65b434d16a8755142bfa95ba19c5f9abd0d30cf3dffe3b6793e834f9f56dcc96"
STRING_VECTOR = b"\0\0\0\x10"  # the XDR tag of a vector of strings


def records(rdb):
    """The inflated records of an .rdb file, in order."""
    while rdb:
        stream = zlib.decompressobj()  # where the stream ends, only the stream says
        yield stream.decompress(rdb[4:])
        rdb = stream.unused_data


def lines(record):
    """The strings of the first string vector of a record."""
    at = record.index(STRING_VECTOR) + 4
    (count,) = struct.unpack_from(">I", record, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from(">I", record, at + 4)  # behind 4 bytes of flags
        yield record[at + 8 : at + 8 + length]
        at += 8 + length


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rdb", metavar="RDATA.RDB", type=pathlib.Path)
    parser.add_argument("out", metavar="DIR", type=pathlib.Path)
    options = parser.parse_args()

    try:
        novels = [b"".join(line + b"\n" for line in lines(record)) for record in records(options.rdb.read_bytes())]
    except OSError as error:
        sys.exit(f"austen: {error}")
    except (ValueError, struct.error, zlib.error) as error:
        sys.exit(f"austen: {options.rdb} is not the data file of r-cran-janeaustenr: {error}")
    text = b"".join(novels)
    found = hashlib.sha256(text).hexdigest()
    if found != SHA256:
        sys.exit(f"austen: the text of {options.rdb} should have sha256 {SHA256}, not {found} ({len(text)} bytes)")

    options.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("austen", text), ("train", b"".join(novels[:-1])), ("val", novels[-1])):
        place = options.out / f"{name}.txt"
        unfinished = place.with_suffix(".part")
        try:
            unfinished.write_bytes(part)
            unfinished.replace(place)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            sys.exit(f"austen: {error}")
    print(f"austen: {len(novels)} novels, {len(text):,} bytes; the last, {len(novels[-1]):,} bytes, is held out")


if __name__ == "__main__":
    main()
