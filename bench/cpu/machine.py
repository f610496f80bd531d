# SPDX-License-Identifier: MIT OR Apache-2.0
"""The machine that was measured, and what else ran on it meanwhile."""

import datetime
import os
import platform
import time

TICK = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0))


def sheet():
    """One line: processor, cores, memory, kernel, date."""
    with open("/proc/cpuinfo") as f:
        fields = dict(line.split(":", 1) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    isa = [name for name in ("avx2", "fma", "avx512f", "avx512_vnni", "amx_bf16") if name in flags]
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    virtual = ", virtual machine" if "hypervisor" in flags else ""
    return (
        f"{fields.get('model name', platform.machine())} ({family}; {' '.join(isa)}), {CORES} cores{virtual}, "
        f"{memory:.0f} GiB, Linux {platform.release()}, {datetime.date.today()}"
    )


def busy_seconds():
    """Processor seconds that everything on this machine has used since it started."""
    with open("/proc/stat") as f:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def process_seconds(pid):
    """Processor seconds of one process, all its threads; 0 once it has gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


class Others:
    """Share of the machine that others took between the making of this and `share`: 0 = the machine was ours.

    Ours are this process, its children that have ended, and `pids`."""

    def __init__(self, pids):
        self.pids = pids
        self.begun = time.monotonic()
        self.before = busy_seconds() - self.ours()

    def ours(self):
        ended = os.times()
        return time.process_time() + ended.children_user + ended.children_system + sum(map(process_seconds, self.pids))

    def share(self):
        elapsed = max(time.monotonic() - self.begun, 1e-3)
        return max(0.0, busy_seconds() - self.ours() - self.before) / elapsed / CORES


def wait_for_quiet(share):
    """Waits until others take at most `share` of the machine, for a minute at most."""
    for _ in range(60):
        others = Others([])
        time.sleep(1)
        if others.share() <= share:
            return
