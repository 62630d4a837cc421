"""The machine: chip, system, memory, MLX and its speed, which precision of the 8B fits, disk, open files."""

import os
import platform
import resource
import shutil
from pathlib import Path

import psutil

from misod.doctor.finding import Finding, Site, fail, ok, run, warn
from misod.doctor.models import installed_precision
from misod.doctor.probe import ProbeFailed
from misod.runtime import FEWEST_FILES
from misod.weights import budget
from misod.weights.progress import size

OLDEST_MACOS = 14  # of MLX's wheels, macosx_14_0
OLDEST_GLIBC = (2, 35)  # of MLX's wheels, manylinux_2_35
CPUINFO = Path("/proc/cpuinfo")
LITTLE_MEMORY_BYTES = 500_000_000  # nano takes 150 MB, MLX's pool may take as much again
LITTLE_DISK_BYTES = 100_000_000  # logs, voices
MOST_WIRED = 0.9  # of memory; beyond it macOS itself is starved
SLOWEST_MAC_BYTES_PER_S = 40e9  # an M1 has 68 GB/s


def chip(site: Site) -> Finding:
    if site.mac:
        name = run("sysctl", "-n", "machdep.cpu.brand_string") or "unknown"
        if run("sysctl", "-n", "sysctl.proc_translated") == "1":
            return fail("chip", f"{name}, but this Python is translated by Rosetta", "install an arm64 Python and miso")
        if not name.startswith("Apple"):
            return fail("chip", f"{name}: MLX needs Apple silicon", "use a Mac with an M1 or later")
        return ok("chip", name)
    name = f"{_cpu_name() or site.machine}, {os.cpu_count()} cores"
    if site.machine not in ("x86_64", "aarch64"):
        return fail("chip", f"{name}: there is no MLX for {site.machine}", "use an x86_64 or aarch64 machine")
    return ok("chip", name)


def _cpu_name() -> str | None:
    """ARM's kernels name none."""
    for line in CPUINFO.read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def system(site: Site) -> Finding:
    if site.mac:
        version = run("sw_vers", "-productVersion")
        if not version or not version.split(".")[0].isdigit():
            return warn("system", "macOS, version unknown: sw_vers does not say", "run `sw_vers` in a terminal")
        if int(version.split(".")[0]) < OLDEST_MACOS:
            return fail("system", f"macOS {version}: MLX needs {OLDEST_MACOS} or later", "update macOS")
        return ok("system", f"macOS {version}")
    name = f"{_distribution()}, kernel {platform.release()}"
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < OLDEST_GLIBC:
        needed = ".".join(map(str, OLDEST_GLIBC))
        found = f"{libc} {version}".strip() or "another C library"
        return warn("system", f"{name}: {found}; MLX's wheels need glibc {needed}", "use a newer distribution")
    return ok("system", name)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def memory(_site: Site) -> Finding:
    now = psutil.virtual_memory()
    detail = f"{size(now.total)} ({now.total / 2**30:.0f} GiB), {size(now.available)} of it free"
    if now.available < LITTLE_MEMORY_BYTES:
        return warn("memory", detail, "close what you do not need: the bundled voice takes 0.2 GB, the 8B far more")
    return ok("memory", detail)


def wired_limit(site: Site) -> Finding:
    """How much the GPU may hold; only on macOS."""
    text = run("sysctl", "-n", "iogpu.wired_limit_mb") or ""
    if not text.isdigit():
        return warn("wired limit", "iogpu.wired_limit_mb cannot be read", "macOS 14 or later has it: update macOS")
    limit_bytes = int(text) << 20
    if limit_bytes > MOST_WIRED * psutil.virtual_memory().total:
        cure = "`sudo sysctl iogpu.wired_limit_mb=0` gives the choice back to macOS"
        return warn("wired limit", f"{size(limit_bytes)} leaves macOS too little memory", cure)
    if limit_bytes:
        return ok("wired limit", f"{size(limit_bytes)}, set by hand (iogpu.wired_limit_mb)")
    known = "" if isinstance(site.probe, ProbeFailed) else f": {size(site.probe.memory_bytes)}"
    return ok("wired limit", f"as macOS chose{known}")


def mlx(site: Site) -> Finding:
    if isinstance(site.probe, ProbeFailed):
        cure = "install miso again"
        if site.mac:
            cure += "; MLX needs a Metal device, which most virtual machines lack"
        return fail("mlx", str(site.probe), cure)
    detail = f"{site.probe.version} on {site.probe.backend} ({site.probe.device})"
    if site.mac and site.probe.backend != "metal":
        return warn("mlx", f"{detail}, not on Metal: speech is slow", "run it outside a virtual machine")
    return ok("mlx", detail)


def bandwidth(site: Site) -> Finding:
    if isinstance(site.probe, ProbeFailed):
        return warn("bandwidth", "not measured: MLX does not start", "mend the line above first")
    measured = site.probe.bandwidth_bytes_per_s
    detail = f"{measured / 1e9:.0f} GB/s, measured by a copy on {site.probe.backend}"
    if site.probe.backend == "metal" and measured < SLOWEST_MAC_BYTES_PER_S:
        cure = "turn off Low Power Mode, close what uses the GPU, look again"
        return warn("bandwidth", f"{detail}; an M1 has 68", cure)
    return ok("bandwidth", detail)


def fit(site: Site, precision: str) -> Finding:
    """Whether the 8B in this precision fits, and how fast memory lets it be."""
    name, installed = f"8B as {precision}", installed_precision(site.paths) == precision
    needed, room = budget.resident_bytes(budget.MISO_8B, precision), _room_bytes(site)
    detail = f"takes {size(needed)} of {size(room)}"
    if needed > room:
        detail = f"does not fit: takes {size(needed)}, {size(room)} may be taken"
        if installed:
            return fail(name, f"{detail}; it is installed", "`misoctl pull miso` chooses a smaller precision")
        return warn(name, detail, "choose a smaller precision, or the bundled nano")
    if isinstance(site.probe, ProbeFailed):
        return warn(name, f"{detail}; speed unknown, MLX does not start", "mend the line `mlx` first")
    if precision == budget.choose(psutil.virtual_memory().total)[0]:
        detail += " (pull's choice)"
    rtf = budget.predicted_rtf(budget.MISO_8B, precision, site.probe.bandwidth_bytes_per_s)
    detail += f", predicted real-time factor {rtf:.2g} at best"
    if rtf >= 1:
        return warn(name, f"{detail}: slower than speech", "write to a file (-o), or use the bundled nano")
    return ok(name, detail)


def _room_bytes(site: Site) -> float:
    """A discrete GPU's own memory; else the share of the machine's that budget grants, if Metal allows as much."""
    share = budget.SHARE * psutil.virtual_memory().total
    if isinstance(site.probe, ProbeFailed) or not site.probe.memory_bytes:
        return share
    return site.probe.memory_bytes if site.probe.backend == "cuda" else min(share, site.probe.memory_bytes)


def disk(site: Site) -> Finding:
    place = next(filter(os.path.exists, (site.paths.home, *site.paths.home.parents)))
    free = shutil.disk_usage(place).free
    detail = f"{size(free)} free in {place}"
    if free < LITTLE_DISK_BYTES:
        return fail("disk", detail, "free some: misod cannot write its log")
    need = budget.pull_bytes(budget.choose(psutil.virtual_memory().total)[0])
    if free < need and installed_precision(site.paths) is None:
        cure = f"free {size(need - free)} before `misoctl pull miso`"
        return warn("disk", f"{detail}; a pull of the 8B takes {size(need)} for a while", cure)
    return ok("disk", detail)


def open_files(_site: Site) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if hard == resource.RLIM_INFINITY else f"{hard}"
    if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
        return fail("open files", f"at most {hard}; misod needs {FEWEST_FILES}", "raise the hard limit (`ulimit -Hn`)")
    return ok("open files", f"{soft} now, at most {shown}; misod raises its own")
