"""The commands that examine this machine, compile CUDA kernels, or run CUDA programs: doctor, compile and simt.

A command imports the module that does its work only when it runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from pav2gen.cli.failures import CompilerFailure
from pav2gen.cli.options import PATH, out_option


@click.command()
@click.argument("tree", type=PATH, required=False)
@click.option("--python", default=sys.executable, help="The Python that runs vLLM.  [default: this one]")
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(tree: Path | None, python: str, out: Path, as_json: bool) -> None:
    """Show what pav2gen finds on this machine, and which command to type next.

    TREE is a vLLM tree. By default, it is the vLLM that --python imports. Nothing is written. A missing part of the
    machine, such as a compiler, is reported, but it is not an error.

    \b
    Example:
      pav2gen doctor
      pav2gen doctor /usr/local/corex/lib64/python3/dist-packages --json
    """
    from pav2gen.commands.doctor import DoctorOptions, examine

    found = examine(DoctorOptions(python, tree, out))
    if as_json:
        click.echo(json.dumps(found.document(), indent=1))
    else:
        for line in found.lines():
            click.echo(line)


@click.command("compile")
@click.argument("package", type=PATH, default="generated")
@click.option("--toolchain", type=click.Choice(["corex", "nvcc", "host"]), help="[default: corex if found, else nvcc]")
@click.option("--arch", help="ivcore10 for a BI-V100, CoreX's default; sm_75 and the like for nvcc.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Compilers that run together.  [default: one for each processor]"
)
@click.option("--warp-size", type=click.Choice(["32", "64"]), default="64", help="Warp size of the host toolchain.")
@click.option("--checked", is_flag=True, help="With the host toolchain: check and count every memory access.")
def compile_(
    package: Path, toolchain: str | None, arch: str | None, jobs: int | None, warp_size: str, checked: bool
) -> None:
    """Compile the CUDA kernels of PACKAGE, a generated package, into one library. Print the library's path.

    The library is kept in the user's cache folder. The library's name is a hash of everything that it is built from. On
    a machine that has the kernels in its vLLM, but not pav2gen, run instead: python .../pav2/runtime/library.py

    \b
    Example:
      pav2gen compile --toolchain corex
      pav2gen compile --toolchain nvcc --arch sm_75
      pav2gen compile --toolchain host
    """
    from pav2gen.runtime.library import LibraryError, build, kernels_of, package_rows

    try:
        kernels = kernels_of(package_rows(package.resolve()), package.resolve())
        path = build(kernels, toolchain, arch, jobs, int(warp_size), checked, verbose=True)
    except LibraryError as error:
        raise CompilerFailure(str(error)) from None
    click.echo(os.fsencode(path))


@click.group()
def simt() -> None:
    """Run CUDA programs on the CPU, at warp size 64 or 32. Check and count every access to memory.

    \b
    Example:
      pav2gen simt run scale.cu
    """


@simt.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> None:
    """Compile a CUDA program that has a main(), and run it on the CPU. Print memory errors, races and access counts.

    \b
    Example:
      pav2gen simt run scale.cu
      pav2gen simt run --help
    """
    from pav2gen.runtime.simt import main as run_program

    sys.exit(run_program(arguments, prog="pav2gen simt run"))


COMMANDS = (doctor, compile_, simt)
