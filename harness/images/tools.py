"""What building needs on the host: debootstrap, Maven, Go. As root on Debian or Ubuntu it is installed, and said so."""

import os
import shutil
import subprocess

from aftershock.harness.images.workshop import StepError, Workshop, workshop

APT_LOCK_WAIT_S = 120


def need(bench: Workshop, command: str, *packages: str) -> None:
    """Make sure that ``command`` is on the PATH, installing ``packages`` with apt-get where we may.

    Raises:
        StepError: it is missing and we may not, or could not, install it.
    """
    if shutil.which(command):
        return
    if not may_install():
        raise StepError(f"{command} is not on the PATH; install it ({' '.join(packages)} on Debian and Ubuntu)")
    # one at a time: two builds in one process would fail on apt's own lock
    with workshop(bench.client, "apt packages", bench.say, bench.cancelled):
        if not shutil.which(command):
            bench.say(f"building {bench.subject}: installing {' '.join(packages)} with apt-get")
            bench.run(["apt-get", "update", "-qq"])
            install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
            lock_wait = ("-o", f"DPkg::Lock::Timeout={APT_LOCK_WAIT_S}")
            bench.run([*install, *lock_wait, *packages], env={"DEBIAN_FRONTEND": "noninteractive"})
    if not shutil.which(command):
        raise StepError(f"{command} is still not on the PATH after installing {' '.join(packages)}")


def may_install() -> bool:
    """Whether we are root on a system with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def output_of(*argv: str) -> str:
    """What a quick command prints on standard output; nothing if it fails or is not there."""
    if shutil.which(argv[0]) is None:
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
