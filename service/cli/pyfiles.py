"""`firn pyfiles`: writes the package as a zip for Spark's executors."""

from __future__ import annotations

import argparse
import json

from service.cli.arguments import add_json_option


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pyfiles",
        help="write the package as a zip for spark-submit --py-files",
        description="Write this package, with the record kernels that are compiled here, as a zip for "
        "spark-submit --py-files. Executors with the same Python and platform run them, others read about 17"
        " times slower. Executors need its libraries, those of the extra [executor] (docs/install.md).",
    )
    parser.add_argument("output", metavar="OUT.zip", help="the file to write")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from service.base.errors import ConfigError
    from service.base.files import write_atomically
    from service.base.world import system_world
    from service.spark.pyfiles import has_kernels_for_here, package_zip

    if not args.output.endswith(".zip"):
        raise ConfigError(f"{args.output}: Spark accepts only files that end in .zip")
    packed = package_zip()
    write_atomically(system_world().disk, Path(args.output), packed.data)
    kernels = [kernel.strip(".") for kernel in packed.kernels]
    if args.json:
        print(json.dumps({"path": args.output, "bytes": len(packed.data), "kernels": kernels}, indent=2))
        return 0
    named = ", ".join(kernels) or "none"
    print(f"{args.output}: {len(packed.data):,} bytes, compiled kernels: {named}")
    if not has_kernels_for_here(packed):
        print("Without compiled kernels executors read about 17 times slower: install firn's wheel there.")
    return 0
