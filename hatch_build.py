"""Build: compiles the kernel, for this machine or for another one.

The compiler is the package ``ziglang``, which pip installs for the build: no compiler of the
system is needed, the same source gives the same bytes everywhere, and one machine builds for
all others.  POOLWISE_PLATFORM names another platform of `PLATFORMS`.

POOLWISE_REPOSITORY is the address of the repository.  A release has it in its metadata, so that
readers of a package index find the source, the tracker and the place to report a hole.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NATIVE = Path("src", "poolwise", "engines", "native")
SOURCES = ("kernel.h", "kernel.c")  # engines/compiled.py has the same list
FLAGS = (
    "-O3",
    "-shared",
    "-s",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-strict-aliasing",  # lines are read as doubles and as vectors of them
    "-Wall",
    "-Wextra",
)
NOT_RELEASED = "musllinux"  # DuckDB has no wheels for it: build from the source archive there
PLATFORMS = {  # tag of the wheel: target of the compiler, ending of the library
    "manylinux_2_17_x86_64": ("x86_64-linux-gnu.2.17", ".so"),
    "manylinux_2_17_aarch64": ("aarch64-linux-gnu.2.17", ".so"),
    "musllinux_1_2_x86_64": ("x86_64-linux-musl", ".so"),
    "musllinux_1_2_aarch64": ("aarch64-linux-musl", ".so"),
    "macosx_11_0_arm64": ("aarch64-macos.11.0", ".dylib"),
    "macosx_11_0_x86_64": ("x86_64-macos.11.0", ".dylib"),
    "win_amd64": ("x86_64-windows-gnu", ".dll"),
}


def this_platform() -> str:
    """Return the platform of this machine."""
    machine = platform.machine().lower()
    if sys.platform == "win32":
        return f"win_{machine}"
    if sys.platform == "darwin":
        return f"macosx_11_0_{machine}"
    libc = "manylinux_2_17" if platform.libc_ver()[0] == "glibc" else "musllinux_1_2"
    return f"{libc}_{machine}"


def compile_kernel(root: Path, name: str) -> Path:
    """Compile the kernel for a platform, into the folder of its sources."""
    if name not in PLATFORMS:
        listed = ", ".join(PLATFORMS)
        raise SystemExit(
            f"poolwise is built for {listed}, got {name}: set POOLWISE_PLATFORM to one that "
            "this machine can run"
        )
    target, suffix = PLATFORMS[name]
    folder = root / NATIVE
    known = crc32(b"".join((folder / source).read_bytes() for source in SOURCES))
    with tempfile.TemporaryDirectory() as work:
        library = Path(work, f"kernel{suffix}")
        caches = dict.fromkeys(("ZIG_LOCAL_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR"), work)
        words = [sys.executable, "-m", "ziglang", "cc", *FLAGS, "-target", target]
        position = [] if suffix == ".dll" else ["-fPIC"]
        files = ["-o", str(library), "kernel.c", "-lm"]
        subprocess.run(  # noqa: S603 - our own words
            [*words, *position, f"-DSOURCE={known}u", *files],
            check=True,
            cwd=folder,
            env=os.environ | caches,
        )
        path = folder / library.name
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_bytes(library.read_bytes())
        fresh.replace(path)  # processes that use the old library keep it
    return path


class Hook(BuildHookInterface[Any]):
    """Compiles the kernel when a wheel is built, or installed as editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - given by hatchling
        """Compile, and mark the wheel as one for the platform."""
        name = os.environ.get("POOLWISE_PLATFORM") or this_platform()
        library = compile_kernel(Path(self.root), name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{name}"
        build_data["artifacts"].append(f"/{library.relative_to(self.root).as_posix()}")


class Addresses(MetadataHookInterface):
    """Adds the addresses of the repository to the metadata of a release."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Name the pages that POOLWISE_REPOSITORY has; none without it."""
        home = os.environ.get("POOLWISE_REPOSITORY", "").rstrip("/")
        pages = {
            "Source": home,
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Issues": f"{home}/issues",
            "Report a security hole": f"{home}/security/advisories/new",
        }
        metadata["urls"] = pages if home else {}


if __name__ == "__main__":
    if "--list" in sys.argv:
        print(*(name for name in PLATFORMS if not name.startswith(NOT_RELEASED)), sep="\n")
    else:
        print(compile_kernel(Path(__file__).parent, this_platform()))
